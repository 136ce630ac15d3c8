//! A small assembler of the kernel's instruction set: the instructions of `program`, with jumps to one label.
//!
//! It knows nothing of Services, and checks nothing: the kernel's verifier does.

use std::os::fd::{AsRawFd, BorrowedFd};

/// A register. R0 has results, R1 to R5 arguments, R6 to R9 outlive calls, and `Fp` is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R6 = 6,
    R7,
    R8,
    R9,
    Fp,
}

/// The width of one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Size {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

/// A helper function of the kernel, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Helper {
    MapLookup = 1,
    MapUpdate = 2,
    SocketCookie = 46,
}

const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const STORE_NUMBER: u8 = 0x62;
const LOAD_WIDE: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_NUMBER: u8 = 0xb7;
const ADD_NUMBER: u8 = 0x07;
const MULTIPLY: u8 = 0x2f;
const SHIFT_RIGHT_NUMBER: u8 = 0x77;
/// The unsigned remainder of 32 bits.
const REMAINDER: u8 = 0x9c;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_IF_NOT_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The source of a wide number that is a map.
const MAP_DESCRIPTOR: u8 = 1;

/// Instructions, each of eight bytes, in the making.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<[u8; 8]>,
    /// Jumps to the end, whose offsets are set when it is known.
    leaving: Vec<usize>,
}

impl Assembler {
    fn put(mut self, operation: u8, to: Register, from: u8, offset: i16, number: i32) -> Assembler {
        let [low, high] = offset.to_ne_bytes();
        let [a, b, c, d] = number.to_ne_bytes();
        // The two registers are fields of one byte, in native order.
        let registers = if cfg!(target_endian = "little") { to as u8 | from << 4 } else { (to as u8) << 4 | from };
        self.code.push([operation, registers, low, high, a, b, c, d]);
        self
    }

    /// Emits `to = *(base + offset)`.
    pub fn load(self, size: Size, to: Register, base: Register, offset: i16) -> Assembler {
        self.put(LOAD | size as u8, to, base as u8, offset, 0)
    }

    /// Emits `*(base + offset) = from`.
    pub fn store(self, size: Size, base: Register, offset: i16, from: Register) -> Assembler {
        self.put(STORE | size as u8, base, from as u8, offset, 0)
    }

    /// Emits `*(base + offset) = number`.
    pub fn store_number(self, size: Size, base: Register, offset: i16, number: i32) -> Assembler {
        self.put(STORE_NUMBER | size as u8, base, 0, offset, number)
    }

    pub fn copy(self, to: Register, from: Register) -> Assembler {
        self.put(MOVE, to, from as u8, 0, 0)
    }

    pub fn number(self, to: Register, number: i32) -> Assembler {
        self.put(MOVE_NUMBER, to, 0, 0, number)
    }

    /// Emits `to = Fp + offset`.
    pub fn stack(self, to: Register, offset: i32) -> Assembler {
        self.copy(to, Register::Fp).put(ADD_NUMBER, to, 0, 0, offset)
    }

    fn wide(self, to: Register, kind: u8, number: u64) -> Assembler {
        self.put(LOAD_WIDE, to, kind, 0, number as i32).put(0, Register::R0, 0, 0, (number >> 32) as i32)
    }

    pub fn wide_number(self, to: Register, number: u64) -> Assembler {
        self.wide(to, 0, number)
    }

    pub fn map(self, to: Register, map: BorrowedFd<'_>) -> Assembler {
        self.wide(to, MAP_DESCRIPTOR, map.as_raw_fd() as u64)
    }

    pub fn multiply(self, to: Register, by: Register) -> Assembler {
        self.put(MULTIPLY, to, by as u8, 0, 0)
    }

    pub fn shift_right(self, to: Register, bits: i32) -> Assembler {
        self.put(SHIFT_RIGHT_NUMBER, to, 0, 0, bits)
    }

    pub fn remainder(self, to: Register, by: Register) -> Assembler {
        self.put(REMAINDER, to, by as u8, 0, 0)
    }

    pub fn call(self, helper: Helper) -> Assembler {
        self.put(CALL, Register::R0, 0, 0, helper as i32)
    }

    pub fn leave_if_equal(mut self, register: Register, number: i32) -> Assembler {
        self.leaving.push(self.code.len());
        self.put(JUMP_IF_EQUAL, register, 0, 0, number)
    }

    pub fn leave_unless_equal(mut self, register: Register, number: i32) -> Assembler {
        self.leaving.push(self.code.len());
        self.put(JUMP_IF_NOT_EQUAL, register, 0, 0, number)
    }

    /// Ends the program with a result, at the target of all jumps.
    pub fn finish(self, result: i32) -> Vec<[u8; 8]> {
        let end = self.code.len();
        let mut program = self.number(Register::R0, result).put(EXIT, Register::R0, 0, 0, 0);
        for at in &program.leaving {
            let distance = i16::try_from(end - at - 1).unwrap_or(i16::MAX).to_ne_bytes();
            program.code[*at][2..4].copy_from_slice(&distance);
        }
        program.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operation, both registers with the target in the low half, offset, number: as `linux/bpf.h` lays them out.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_the_kernels() {
        use Register::{Fp, R0, R1, R2, R6, R7};
        let new = Assembler::default;
        for (made, hex) in [
            (new().copy(R6, R1), "bf16000000000000"),
            (new().load(Size::Word, R1, R6, 24), "6161180000000000"),
            (new().load(Size::Half, R1, R7, 16), "6971100000000000"),
            (new().load(Size::Double, R1, R6, 64), "7961400000000000"),
            (new().store(Size::Word, Fp, -12, R1), "631af4ff00000000"),
            (new().store(Size::Double, Fp, -64, R0), "7b0ac0ff00000000"),
            (new().store_number(Size::Double, Fp, -24, 0), "7a0ae8ff00000000"),
            (new().store_number(Size::Byte, Fp, -6, 17), "720afaff11000000"),
            (new().wide_number(R1, 0x0102_0304_0506_0708), "18010000080706050000000004030201"),
            (new().multiply(R0, R1), "2f10000000000000"),
            (new().shift_right(R0, 32), "7700000020000000"),
            (new().remainder(R0, R7), "9c70000000000000"),
            (new().call(Helper::SocketCookie), "850000002e000000"),
            (new().stack(R2, -24), "bfa200000000000007020000e8ffffff"),
        ] {
            let encoded: String = made.code.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(encoded, hex);
        }
    }

    #[test]
    fn every_jump_leads_to_the_end() {
        let code = Assembler::default()
            .leave_if_equal(Register::R0, 0)
            .number(Register::R1, 7)
            .leave_unless_equal(Register::R1, 7)
            .finish(1);
        assert_eq!(code.len(), 5);
        assert_eq!(code[0][2..4], 2i16.to_ne_bytes());
        assert_eq!(code[2][2..4], 0i16.to_ne_bytes());
        assert_eq!(code[3][4..8], 1i32.to_ne_bytes());
    }
}
