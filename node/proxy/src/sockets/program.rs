//! The programs: the connect, send, receive and peer of a socket while its Service has endpoints.
//!
//! All addresses are of sixteen bytes, those of IPv4 mapped, because a socket of IPv6 may connect to either. A program
//! never refuses anything: an address that it does not find stays unchanged, and nf_tables translates it.

use std::os::fd::BorrowedFd;

use super::assembler::Register::{Fp, R0, R1, R2, R3, R4, R6, R7, R8, R9};
use super::assembler::Size::{Byte, Double, Half, Word};
use super::assembler::{Assembler, Helper, Register};

/// The hook of a program: its number in the kernel, the IP family of its addresses, and its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub number: u32,
    pub ipv6: bool,
    task: Task,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// A TCP socket connects.
    Connect,
    /// A UDP socket that is not connected sends.
    Send,
    /// Replaces an answer's sender, or a socket's peer, by the requested address.
    Reverse,
}

const fn hook(number: u32, ipv6: bool, task: Task) -> Hook {
    Hook { number, ipv6, task }
}

/// `BPF_CGROUP_INET4_CONNECT` and so on.
pub(super) const HOOKS: [Hook; 8] = [
    hook(10, false, Task::Connect),
    hook(11, true, Task::Connect),
    hook(14, false, Task::Send),
    hook(15, true, Task::Send),
    hook(19, false, Task::Reverse),
    hook(20, true, Task::Reverse),
    hook(29, false, Task::Reverse),
    hook(30, true, Task::Reverse),
];

/// The maps that programs read and write.
pub(super) struct Maps<'a> {
    /// address, port, protocol → generation, number of endpoints
    pub services: BorrowedFd<'a>,
    /// generation, index → endpoint, port
    pub endpoints: BorrowedFd<'a>,
    /// socket, endpoint, port → address, port, protocol
    pub requested: BorrowedFd<'a>,
}

// Of `struct bpf_sock_addr`.
const IP4: i16 = 4;
const IP6: i16 = 8;
const PORT: i16 = 24;
const PROTOCOL: i16 = 36;
const SOCKET: i16 = 64;
/// Of `struct bpf_sock`.
const STATE: i16 = 72;
const ESTABLISHED: i32 = 1;

const TCP: i32 = 6;
const UDP: i32 = 17;

// Offsets on the stack: a Service's key, an endpoint's key, and the key of the requested address.
const SERVICE: i16 = -24;
const ENDPOINT: i16 = -40;
const REQUESTED: i16 = -72;
/// The offset of the port after an address, at the start of keys and values.
const PORT_AFTER: i16 = 16;

/// A multiplier of the golden ratio: spreads cookies, which are counted, over all numbers.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Assembles the instructions of a hook.
pub(super) fn assemble(hook: Hook, maps: &Maps<'_>) -> Vec<[u8; 8]> {
    let start = Assembler::default().copy(R6, R1);
    match hook.task {
        Task::Connect => forward(only(start, TCP), TCP, hook.ipv6, maps),
        Task::Send => forward(unconnected(only(start, UDP)), UDP, hook.ipv6, maps),
        Task::Reverse => reverse(start, hook.ipv6, maps),
    }
    .finish(1)
}

fn only(code: Assembler, protocol: i32) -> Assembler {
    code.load(Word, R1, R6, PROTOCOL).leave_unless_equal(R1, protocol)
}

/// Leaves if the socket is connected: it takes answers of its peer only, which nf_tables gives it.
fn unconnected(code: Assembler) -> Assembler {
    code.load(Double, R1, R6, SOCKET).load(Word, R1, R1, STATE).leave_if_equal(R1, ESTABLISHED)
}

/// Copies the address and the port of the socket's call to an offset of the stack.
fn take_address(code: Assembler, ipv6: bool, at: i16) -> Assembler {
    let code = if ipv6 {
        (0..4).fold(code, |code, word| code.load(Word, R1, R6, IP6 + 4 * word).store(Word, Fp, at + 4 * word, R1))
    } else {
        let mapped = i32::from_ne_bytes([0, 0, 0xff, 0xff]);
        let code = code.store_number(Double, Fp, at, 0).store_number(Word, Fp, at + 8, mapped);
        code.load(Word, R1, R6, IP4).store(Word, Fp, at + 12, R1)
    };
    let code = code.store_number(Word, Fp, at + PORT_AFTER, 0);
    code.load(Word, R1, R6, PORT).store(Half, Fp, at + PORT_AFTER, R1)
}

/// Sets the address and the port of the socket's call from a register's target.
fn give_address(code: Assembler, ipv6: bool, from: Register) -> Assembler {
    let code = if ipv6 {
        (0..4).fold(code, |code, word| code.load(Word, R1, from, 4 * word).store(Word, R6, IP6 + 4 * word, R1))
    } else {
        code.load(Word, R1, from, 12).store(Word, R6, IP4, R1)
    };
    code.load(Half, R1, from, PORT_AFTER).store(Word, R6, PORT, R1)
}

fn look_up(code: Assembler, map: BorrowedFd<'_>, key: i16) -> Assembler {
    code.map(R1, map).stack(R2, key.into()).call(Helper::MapLookup).leave_if_equal(R0, 0)
}

/// Forwards to an endpoint that follows from the socket alone, so that a socket stays with it while the endpoints stay.
fn forward(code: Assembler, protocol: i32, ipv6: bool, maps: &Maps<'_>) -> Assembler {
    let code = take_address(code, ipv6, SERVICE).store_number(Byte, Fp, SERVICE + PORT_AFTER + 2, protocol);
    let code = look_up(code, maps.services, SERVICE);
    let code = code.load(Double, R7, R0, 0).load(Word, R8, R0, 8).leave_if_equal(R8, 0);
    let code = code.copy(R1, R6).call(Helper::SocketCookie).copy(R9, R0);
    let code = code.wide_number(R1, SPREAD).multiply(R0, R1).shift_right(R0, 32).remainder(R0, R8);
    let code = code.store(Double, Fp, ENDPOINT, R7).store(Double, Fp, ENDPOINT + 8, R0);
    let code = look_up(code, maps.endpoints, ENDPOINT).copy(R7, R0);
    let code = code.store(Double, Fp, REQUESTED, R9);
    let words = [0, 4, 8, 12, PORT_AFTER];
    let code = words.iter().fold(code, |code, at| code.load(Word, R1, R7, *at).store(Word, Fp, REQUESTED + 8 + at, R1));
    let code = code.map(R1, maps.requested).stack(R2, REQUESTED.into()).stack(R3, SERVICE.into());
    let code = code.number(R4, 0).call(Helper::MapUpdate).leave_unless_equal(R0, 0);
    give_address(code, ipv6, R7)
}

fn reverse(code: Assembler, ipv6: bool, maps: &Maps<'_>) -> Assembler {
    let code = code.copy(R1, R6).call(Helper::SocketCookie).store(Double, Fp, REQUESTED, R0);
    let code = look_up(take_address(code, ipv6, REQUESTED + 8), maps.requested, REQUESTED).copy(R7, R0);
    give_address(code, ipv6, R7)
}
