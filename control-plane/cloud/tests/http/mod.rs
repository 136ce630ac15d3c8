//! A small HTTP server for tests: one request a connection, answered by a function.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// The path with its query.
    pub target: String,
    /// The header lines in lower case.
    pub head: String,
    pub body: String,
}

/// An answer; none closes the connection.
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// Serves on a loopback address until the test's process ends.
pub fn serve(answer: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || respond(stream, &*answer));
        }
    });
    address
}

fn respond(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Option<Answer>) {
    let Some(request) = read(&mut stream) else { return };
    let Some(Answer { status, body }) = answer(&request) else { return };
    let length = body.len();
    let text = format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let _ = stream.write_all(text.as_bytes());
}

fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split_ascii_whitespace();
    let method = words.next()?.to_owned();
    let target = words.next()?.to_owned();
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        // The names of headers are of one case, their values stay.
        let (name, value) = line.split_once(':')?;
        let name = name.to_ascii_lowercase();
        if name == "content-length" {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&format!("{name}: {}\n", value.trim()));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, target, head, body: String::from_utf8(body).ok()? })
}
