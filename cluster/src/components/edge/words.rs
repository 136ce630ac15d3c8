//! The words of the socket between a proxy and the processes that find it: each is a line, and so is its answer.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A question for the state of the proxy.
pub const HELLO: &str = "hello";
/// A server process keeps the proxy running from now on.
pub const ATTACH: &str = "attach";
/// The server process stops in order.
pub const STOPPING: &str = "stopping";
/// A request for the sockets of all listeners.
pub const LISTENERS: &str = "listeners";
/// Another process accepts from the sockets now.
pub const RETIRE: &str = "retire";

/// The answer to a word that was followed.
pub const DONE: &str = "done";
/// The states of a proxy: it has no table yet, it serves, another process has taken over.
pub const STARTING: &str = "starting";
pub const SERVING: &str = "serving";
pub const DRAINING: &str = "draining";

/// The most bytes of a word.
const MAX_WORD: usize = 32;
/// The time limit of the rest of a word after its first byte, and of an answer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Reads the next word, however long it takes to come; `None` at the end.
pub async fn read(stream: &mut UnixStream) -> io::Result<Option<String>> {
    let mut first = [0];
    if stream.read(&mut first).await? == 0 {
        return Ok(None);
    }
    let rest = tokio::time::timeout(PATIENCE, async {
        let mut word = vec![first[0]];
        while word.last() != Some(&b'\n') {
            if word.len() > MAX_WORD {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the word is too long"));
            }
            word.push(stream.read_u8().await?);
        }
        word.pop();
        String::from_utf8(word).map_err(io::Error::other)
    });
    rest.await?.map(Some)
}

/// Writes a word.
pub async fn write(stream: &mut UnixStream, word: &str) -> io::Result<()> {
    stream.write_all(format!("{word}\n").as_bytes()).await
}

/// Sends a word, and returns its answer.
pub async fn ask(stream: &mut UnixStream, word: &str) -> io::Result<String> {
    let answered = tokio::time::timeout(PATIENCE, async {
        write(stream, word).await?;
        read(stream).await
    });
    answered.await??.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
