//! The devices that a container may use.
//!
//! A container has CAP_MKNOD by default, so it can make a node for any device; the devices controller keeps it from
//! opening one. On a kernel without the controller, the node reports the error, and its containers get neither the
//! capability nor device nodes of images and volumes. v1 takes rules as strings; v2 takes a BPF program, which is
//! assembled here by hand: one comparison chain per rule.

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Group, Hierarchy};
use crate::Error;

/// An allowed device; `None` matches any device number.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct DeviceRule {
    /// `c` for character devices, `b` for block devices, or `a` for all devices.
    pub kind: char,
    pub major: Option<u32>,
    pub minor: Option<u32>,
    /// The allowed access: any of `r`, `w`, `m`.
    pub access: String,
}

impl DeviceRule {
    fn new(kind: char, major: impl Into<Option<u32>>, minor: impl Into<Option<u32>>, access: &str) -> Self {
        Self { kind, major: major.into(), minor: minor.into(), access: access.to_string() }
    }

    /// Returns the rules of privileged containers: all devices.
    pub fn all() -> Vec<Self> {
        vec![Self::new('a', None, None, "rwm")]
    }

    /// Returns the rules of every container: make any device node, and open the harmless devices.
    pub fn defaults() -> Vec<Self> {
        let mut rules = vec![Self::new('c', None, None, "m"), Self::new('b', None, None, "m")];
        // null, zero, full, random, urandom, tty, console, ptmx.
        let harmless = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];
        rules.extend(harmless.map(|(major, minor)| Self::new('c', major, minor, "rwm")));
        rules.push(Self::new('c', 136, None, "rwm")); // Pseudo terminals.
        rules
    }

    fn to_v1_string(&self) -> String {
        let number = |number: Option<u32>| number.map_or("*".to_string(), |number| number.to_string());
        format!("{} {}:{} {}", self.kind, number(self.major), number(self.minor), self.access)
    }
}

impl Hierarchy {
    /// Returns the reason why this node cannot filter the devices of containers; `None` if it can.
    pub fn device_filter_error(&self) -> Option<String> {
        match self {
            Self::V1(_) => match self.group("").folder("devices") {
                Some(_) => None,
                None => Some("the devices controller is not mounted".into()),
            },
            Self::V2(_) => {
                let loaded = load(&assemble(&DeviceRule::defaults()));
                loaded.err().map(|error| format!("the kernel takes no program for devices: {error}"))
            }
        }
    }
}

impl Group {
    /// Allows the group these devices and no others.
    pub fn allow_devices(&self, rules: &[DeviceRule]) -> Result<(), Error> {
        match &self.hierarchy {
            Hierarchy::V1(_) => self.allow_devices_v1(rules),
            Hierarchy::V2(_) => self.allow_devices_v2(rules),
        }
    }

    fn allow_devices_v1(&self, rules: &[DeviceRule]) -> Result<(), Error> {
        let Some(folder) = self.folder("devices") else { return Ok(()) };
        let write = |file: &str, to_v1_string: &str| {
            let path = folder.join(file);
            fs::write(&path, to_v1_string).map_err(Error::file("write", &path))
        };
        if rules.iter().any(|rule| rule.kind == 'a') {
            return write("devices.allow", "a *:* rwm");
        }
        write("devices.deny", "a *:* rwm")?;
        rules.iter().try_for_each(|rule| write("devices.allow", &rule.to_v1_string()))
    }

    fn allow_devices_v2(&self, rules: &[DeviceRule]) -> Result<(), Error> {
        if rules.iter().any(|rule| rule.kind == 'a') {
            return Ok(());
        }
        let Some(folder) = self.folder("devices") else { return Ok(()) };
        let group = fs::File::open(&folder).map_err(Error::file("open", &folder))?;
        let program = load(&assemble(rules)).map_err(Error::system("load the device program"))?;
        attach(&program, group.as_raw_fd()).map_err(Error::system("attach the device program"))
    }
}

/// An instruction of the kernel's eBPF machine.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// The destination register in the low four bits, the source in the high four.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const LOAD_WORD: u8 = 0x61;
const MOVE_REGISTER: u8 = 0xbf;
const MOVE_VALUE: u8 = 0xb7;
const AND_VALUE: u8 = 0x57;
const SHIFT_RIGHT_VALUE: u8 = 0x77;
const JUMP_NOT_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

/// Assembles the program. Registers 2 to 5 hold kind, access, major and minor; each rule leaves its chain at the first
/// difference; the end refuses.
fn assemble(rules: &[DeviceRule]) -> Vec<Instruction> {
    let op = |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
    let mut program = vec![
        op(LOAD_WORD, 0x12, 0, 0),          // r2 = access << 16 | kind
        op(MOVE_REGISTER, 0x23, 0, 0),      // r3 = r2
        op(AND_VALUE, 0x02, 0, 0xffff),     // r2 = kind
        op(SHIFT_RIGHT_VALUE, 0x03, 0, 16), // r3 = access
        op(LOAD_WORD, 0x14, 4, 0),          // r4 = major
        op(LOAD_WORD, 0x15, 8, 0),          // r5 = minor
    ];
    for rule in rules {
        let kind = if rule.kind == 'b' { 1 } else { 2 };
        let bit = |access, bit| if rule.access.contains(access) { bit } else { 0 };
        let refused = !(bit('m', 1) | bit('r', 2) | bit('w', 4)) & 7;
        let mut chain = vec![
            op(JUMP_NOT_EQUAL, 0x02, 0, kind),
            op(MOVE_REGISTER, 0x31, 0, 0), // r1 = access
            op(AND_VALUE, 0x01, 0, refused),
            op(JUMP_NOT_EQUAL, 0x01, 0, 0),
        ];
        chain.extend(rule.major.map(|major| op(JUMP_NOT_EQUAL, 0x04, 0, major as i32)));
        chain.extend(rule.minor.map(|minor| op(JUMP_NOT_EQUAL, 0x05, 0, minor as i32)));
        chain.push(op(MOVE_VALUE, 0x00, 0, 1));
        chain.push(op(EXIT, 0, 0, 0));
        let length = chain.len() as i16;
        for (position, instruction) in chain.iter_mut().enumerate() {
            if instruction.code == JUMP_NOT_EQUAL {
                instruction.offset = length - position as i16 - 1;
            }
        }
        program.extend(chain);
    }
    program.push(op(MOVE_VALUE, 0x00, 0, 0));
    program.push(op(EXIT, 0, 0, 0));
    program
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const PROGRAM_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_TYPE_CGROUP_DEVICE: u32 = 6;
const ATTACH_MULTIPLE: u32 = 2;

#[repr(C)]
struct LoadRequest {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct AttachRequest {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

fn load(program: &[Instruction]) -> std::io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let request = LoadRequest {
        program_type: PROGRAM_TYPE_CGROUP_DEVICE,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: the request and the memory it points to live across the call, and its size is given.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const request, size_of::<LoadRequest>()) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn attach(program: &OwnedFd, group: i32) -> std::io::Result<()> {
    let request = AttachRequest {
        target: group as u32,
        program: program.as_raw_fd() as u32,
        attach_type: ATTACH_TYPE_CGROUP_DEVICE,
        flags: ATTACH_MULTIPLE,
    };
    // SAFETY: the request lives across the call, and its size is given.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw const request, size_of::<AttachRequest>()) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_the_controller_reports_why() {
        let controller = |name: &str| super::super::Controller { names: vec![name.into()], mount_point: "/x".into() };
        assert_eq!(Hierarchy::V1(vec![controller("devices")]).device_filter_error(), None);
        assert!(Hierarchy::V1(vec![controller("memory")]).device_filter_error().is_some());
    }

    #[test]
    fn rules_have_the_v1_format() {
        let rules: Vec<_> = DeviceRule::defaults().iter().map(DeviceRule::to_v1_string).collect();
        assert_eq!(rules[0], "c *:* m");
        assert!(rules.contains(&"c 1:3 rwm".to_string()) && rules.contains(&"c 136:* rwm".to_string()));
    }

    #[test]
    fn every_jump_of_the_program_lands_on_the_next_rule() {
        let program = assemble(&DeviceRule::defaults());
        for (position, instruction) in program.iter().enumerate() {
            if instruction.code == JUMP_NOT_EQUAL {
                let target = position + 1 + instruction.offset as usize;
                assert_eq!(program[target - 1].code, EXIT, "the jump at {position} leaves a rule for {target}");
            }
        }
    }

    #[test]
    fn the_kernel_accepts_the_program() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: loading a program into the kernel needs root");
            return;
        }
        match load(&assemble(&DeviceRule::defaults())) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => eprintln!("skipped: this kernel has no BPF"),
            Err(error) => panic!("{error}"),
        }
    }
}
