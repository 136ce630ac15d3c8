//! SCTP by the kernel's own sockets: a server that names itself and its client, and a client that prints the answer.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::socket::{self, Backlog, SockaddrStorage};

/// The longest wait for an answer. A lost first packet is sent again after three seconds.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const LONGEST: u64 = 256;

pub fn missing() -> Option<String> {
    let opened = open(&SocketAddr::from(([0, 0, 0, 0], 0)));
    opened.err().map(|error| format!("this kernel has no sockets of SCTP: {error}"))
}

fn open(address: &SocketAddr) -> io::Result<OwnedFd> {
    let domain = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: the call has no pointers, and nothing else owns the descriptor.
    let opened = unsafe { libc::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_SCTP) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Serves ports until the process ends: answers each client with the host's name and the client's address.
pub fn serve(ports: &[&str]) -> ExitCode {
    let servers: Vec<_> = ports.iter().filter_map(|port| listen(port).ok()).collect();
    if servers.len() != ports.len() || servers.is_empty() {
        eprintln!("cannot serve the ports {ports:?}: {}", io::Error::last_os_error());
        return ExitCode::FAILURE;
    }
    let threads: Vec<_> = servers.into_iter().map(|server| std::thread::spawn(move || answer_all(&server))).collect();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    ExitCode::FAILURE
}

fn listen(port: &str) -> io::Result<TcpListener> {
    let port: u16 = port.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    let opened = open(&address)?;
    socket::bind(opened.as_raw_fd(), &SockaddrStorage::from(address))?;
    socket::listen(&opened, Backlog::new(16)?)?;
    // The kernel's calls for streams are the same for both protocols.
    Ok(TcpListener::from(opened))
}

fn answer_all(server: &TcpListener) {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    for stream in server.incoming().flatten() {
        let name = name.clone();
        std::thread::spawn(move || answer(stream, &name));
    }
}

fn answer(mut stream: TcpStream, name: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let client = stream.peer_addr()?.ip();
    stream.write_all(format!("{name} {client}").as_bytes())?;
    // Until the client has closed.
    io::copy(&mut stream.take(LONGEST), &mut io::sink()).map(drop)
}

/// Returns a server's answer.
pub fn ask(address: &str, port: &str) -> io::Result<String> {
    let ip: IpAddr = address.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let port: u16 = port.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = SocketAddr::new(ip, port);
    let mut stream = TcpStream::from(open(&address)?);
    stream.set_read_timeout(Some(TIMEOUT))?;
    // Also the longest time to connect.
    stream.set_write_timeout(Some(TIMEOUT))?;
    socket::connect(stream.as_raw_fd(), &SockaddrStorage::from(address))?;
    let mut answer = [0; LONGEST as usize];
    // One message: the server waits for the end of the stream.
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Prints a server's answer.
pub fn print_answer(address: &str, port: &str) -> ExitCode {
    match ask(address, port) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("none: {error}");
            ExitCode::FAILURE
        }
    }
}
