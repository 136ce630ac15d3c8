//! Passes bytes between a client and a server that changed protocols.
//!
//! Unlike [`tokio::io::copy_bidirectional`], an error while the client's bytes are passed on does not end the other way: a
//! server says its last words and closes, and a client that speaks at this moment, if only to ask whether the connection is
//! alive, must still hear them.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};

/// Passes bytes both ways until the server has nothing more to say and the client has closed its side, or until one of them
/// cannot be heard or reached any more.
pub async fn relay<C, S>(client: C, server: S) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (mut from_client, mut to_client) = split(client);
    let (mut from_server, mut to_server) = split(server);
    let asking = async {
        let passed = copy(&mut from_client, &mut to_server).await;
        let closed = to_server.shutdown().await;
        passed.is_ok() && closed.is_ok()
    };
    let answering = async {
        let passed = copy(&mut from_server, &mut to_client).await;
        let closed = to_client.shutdown().await;
        passed.and(closed)
    };
    tokio::pin!(asking);
    tokio::pin!(answering);
    tokio::select! {
        answered = &mut answering => {
            // A server that no longer listens has closed both ways.
            if answered.is_ok() {
                asking.await;
            }
            answered
        }
        _ = &mut asking => answering.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, duplex};

    #[tokio::test]
    async fn the_last_words_of_a_server_reach_a_client_that_still_speaks() {
        let (mut client, near) = duplex(64);
        let (mut server, far) = duplex(64);
        // The server has spoken and is gone before anything is passed on; the client's bytes cannot be delivered.
        server.write_all(b"last words").await.unwrap();
        drop(server);
        client.write_all(b"are you there?").await.unwrap();
        let heard = async {
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            drop(client);
            heard
        };
        let (passed, heard) = tokio::join!(relay(near, far), heard);
        assert_eq!(heard, "last words");
        passed.unwrap();
    }

    #[tokio::test]
    async fn a_side_that_closes_is_answered() {
        let (mut client, near) = duplex(64);
        let (mut server, far) = duplex(64);
        let asking = async {
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answering = async {
            let mut question = String::new();
            server.read_to_string(&mut question).await.unwrap();
            server.write_all(format!("{question}: answer").as_bytes()).await.unwrap();
            drop(server);
        };
        let (passed, answer, ()) = tokio::join!(relay(near, far), asking, answering);
        assert_eq!(answer, "question: answer");
        passed.unwrap();
    }
}
