//! The network beyond a machine's default route: a host that has the gateway's address, and answers for every address
//! of private ranges. It forwards nothing, and has no route out itself.

use std::io::Write;
use std::net::TcpListener;

use crate::machine::{ADDRESS, Machine};

/// The addresses of the gateway, and the machine's own of IPv6.
pub const GATEWAY: &str = "10.88.0.1";
pub const GATEWAY6: &str = "fd88::1";
pub const MACHINE6: &str = "fd88::2";
/// The page that it serves on ports 80 and 81 of every address.
pub const PAGE: &str = "from outside";

pub struct World {
    machine: Machine,
}

impl World {
    /// Starts a world behind a machine's default routes of both IP families.
    pub fn beyond(machine: &Machine) -> World {
        let other = Machine::boot();
        for end in [machine, &other] {
            // Addresses are usable at once: there can be no duplicates.
            end.in_network(|| {
                std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0").expect("a kernel with IPv6")
            });
        }
        machine.cable(&other);
        other.ip("route del default");
        other.ip(&format!("addr del {ADDRESS}/24 dev eth0"));
        other.ip(&format!("addr add {GATEWAY}/24 dev eth0"));
        other.ip(&format!("addr add {GATEWAY6}/64 dev eth0"));
        other.ip("route add local 10.0.0.0/8 dev lo");
        other.ip("-6 route add local fd00::/8 dev lo");
        machine.ip(&format!("addr add {MACHINE6}/64 dev eth0"));
        machine.ip(&format!("-6 route add default via {GATEWAY6}"));
        let world = World { machine: other };
        for port in [80, 81] {
            let listener = world.in_network(|| TcpListener::bind(("::", port)).expect("the port is free"));
            std::thread::spawn(move || serve(&listener));
        }
        world
    }

    /// Runs a function in the world's network, in a thread that enters it and ends.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.machine.in_network(work)
    }

    /// Runs busybox's `ip` in the world.
    #[track_caller]
    pub fn ip(&self, arguments: &str) -> String {
        self.machine.ip(arguments)
    }
}

fn serve(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{PAGE}");
    }
}
