//! A supervisor in systemd's place: it hears of readiness and of the watchdog, and keeps the listening socket while the
//! process is exchanged.

use std::io::IoSliceMut;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use testkit::cluster::Cluster;
use testkit::{machine, tools, wait};

use crate::machines::{CORTEN, is_skipped};

/// A message of the supervised process, with the descriptor that it gives away.
struct Message {
    text: String,
    descriptor: Option<OwnedFd>,
}

fn receive(socket: &UnixDatagram) -> Option<Message> {
    let mut bytes = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!([RawFd; 4]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).ok()?;
    let length = message.bytes;
    let rights = message.cmsgs().ok()?.find_map(|part| match part {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    });
    // SAFETY: the kernel made the descriptor for this process with the message.
    let descriptor = rights.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    Some(Message { text: String::from_utf8_lossy(&bytes[..length]).into_owned(), descriptor })
}

/// Receives messages until one has a text; returns the descriptor of that one.
fn until(socket: &UnixDatagram, wanted: &str) -> Option<OwnedFd> {
    wait::until(wanted, wait::BOUND, || match receive(socket) {
        Some(message) if message.text.contains(wanted) => Ok(message.descriptor),
        Some(message) => Err(message.text),
        None => Err("nothing".to_owned()),
    })
}

/// Starts an API server under the supervisor, with a listening socket of the one before it.
fn start(cluster: &Cluster, notify: &str, socket: Option<&OwnedFd>) -> Child {
    let script = if socket.is_some() { "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"" } else { "exec \"$@\"" };
    let mut command: Command = cluster.machine.command(&tools::busybox());
    command.args(["sh", "-c", script, "sh", CORTEN, "apiserver", "--node-name", "first"]);
    command.arg("--data-dir").arg(cluster.data_dir()).env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "3000000");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(std::fs::File::options().create(true).append(true).open(cluster.scratch().join("log")).unwrap());
    if let Some(socket) = socket.map(AsRawFd::as_raw_fd) {
        // SAFETY: dup2 is async-signal-safe; the copy is not closed by exec.
        unsafe {
            command.pre_exec(move || match libc::dup2(socket, 3) {
                3 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
    }
    command.spawn().unwrap()
}

/// Connects to the API server again and again until the end; returns the attempts and the refused ones.
fn connect(cluster: &Cluster, end: &AtomicBool) -> [usize; 2] {
    let address = format!("{}:6443", machine::ADDRESS).parse().unwrap();
    cluster.machine.in_network(|| {
        let mut counts = [0, 0];
        while !end.load(Ordering::Acquire) {
            counts[0] += 1;
            counts[1] += usize::from(TcpStream::connect_timeout(&address, Duration::from_secs(20)).is_err());
        }
        counts
    })
}

#[test]
fn no_connection_is_refused_while_a_supervised_process_is_exchanged() {
    if is_skipped() {
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let path = cluster.scratch().join("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let notify = path.to_string_lossy().into_owned();
    let mut before = start(&cluster, &notify, None);
    let socket = until(&supervisor, "FDSTORE=1\nFDNAME=listen-6443").expect("a socket comes with it");
    until(&supervisor, "READY=1");
    until(&supervisor, "WATCHDOG=1");
    let end = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&cluster, &end));
        cluster.kill_hard();
        before.wait().unwrap();
        let mut after = start(&cluster, &notify, Some(&socket));
        until(&supervisor, "READY=1");
        end.store(true, Ordering::Release);
        let counts = connecting.join().unwrap();
        let log = std::fs::read_to_string(cluster.scratch().join("log")).unwrap();
        assert!(log.contains("listening on the socket of the process before this one"), "{log}");
        cluster.corten(&["down"]);
        until(&supervisor, "STOPPING=1");
        after.wait().unwrap();
        counts
    });
    assert_eq!(counts[1], 0, "{} of {} connections were refused", counts[1], counts[0]);
    assert!(counts[0] > 0);
}
