//! Exec, attach and port-forward as kubectl asks for them: WebSocket, SPDY, and SPDY in a WebSocket.

mod support;

#[allow(dead_code, unused_imports)]
#[path = "../src/streaming/spdy/mod.rs"]
mod spdy;

use base64::Engine;
use corten_cri::v1;
use futures::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use support::{Node, cannot_run, shell};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

/// Sends an upgrade request to a URL of the runtime; returns the chosen protocol and the connection.
async fn upgrade(url: &str, headers: &[(&str, &str)], chosen: &str) -> (String, Upgraded) {
    let uri: http::Uri = url.parse().expect("a URL");
    let socket = tokio::net::TcpStream::connect(uri.authority().expect("an address").as_str()).await.expect("connect");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("handshake");
    tokio::spawn(connection.with_upgrades());
    let mut request = http::Request::post(uri.path()).header("connection", "Upgrade").header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), http::StatusCode::SWITCHING_PROTOCOLS);
    let name = response.headers().get(chosen).map(|name| name.to_str().expect("text").to_string());
    let upgraded = hyper::upgrade::on(response).await.expect("an upgraded connection");
    (name.unwrap_or_default(), TokioIo::new(upgraded))
}

async fn websocket(url: &str, protocol: &str) -> WebSocketStream<Upgraded> {
    let headers = [
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", protocol),
    ];
    let (name, upgraded) = upgrade(url, &headers, "sec-websocket-protocol").await;
    assert_eq!(name, protocol);
    WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await
}

/// Reads all channels to the end.
async fn read_channels(socket: &mut WebSocketStream<Upgraded>) -> [String; 4] {
    let mut channels: [Vec<u8>; 4] = Default::default();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
        }
    }
    channels.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

async fn exec_url(node: &mut Node, id: &str, command: &[&str], stdin: bool, tty: bool) -> String {
    let request = v1::ExecRequest {
        container_id: id.into(),
        cmd: command.iter().map(|word| (*word).to_string()).collect(),
        tty,
        stdin,
        stdout: true,
        stderr: !tty,
    };
    node.runtime.exec(request).await.expect("a URL").into_inner().url
}

async fn node_with_container(script: &str, change: impl FnOnce(&mut v1::ContainerConfig)) -> (Node, String, String) {
    let mut node = Node::start().await;
    let sandbox = node.run_sandbox(&node.sandbox_config("streams")).await;
    let mut config = shell("main", script);
    change(&mut config);
    let id = node.run(&sandbox, &config).await;
    (node, sandbox, id)
}

const IDLE: &str = "while true; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread")]
async fn exec_over_a_websocket_carries_streams_and_the_exit_code() {
    if cannot_run() {
        return;
    }
    let (mut node, _, id) = node_with_container(IDLE, |_| {}).await;
    let command = ["sh", "-c", "cat; echo problem >&2; exit 9"];
    let url = exec_url(&mut node, &id, &command, true, false).await;
    let mut socket = websocket(&url, "v5.channel.k8s.io").await;
    socket.send(Message::binary([b"\0".as_slice(), b"through the pipe\n"].concat())).await.expect("send");
    socket.send(Message::binary(vec![255, 0])).await.expect("close the input");
    let [_, stdout, stderr, status] = read_channels(&mut socket).await;
    assert_eq!((stdout.as_str(), stderr.as_str()), ("through the pipe\n", "problem\n"));
    let status: serde_json::Value = serde_json::from_str(&status).expect("a Status");
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "9");

    let url = exec_url(&mut node, &id, &["no-such-program"], false, false).await;
    let mut socket = websocket(&url, "v4.channel.k8s.io").await;
    let [.., status] = read_channels(&mut socket).await;
    assert!(status.contains("InternalError") && status.contains("executable file not found"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_up_as_their_process_ends_leave_the_container_running() {
    if cannot_run() {
        return;
    }
    let (mut node, _, id) = node_with_container(IDLE, |_| {}).await;
    for _ in 0..200 {
        // The terminal and the client end at the same time.
        let url = exec_url(&mut node, &id, &["cat"], true, true).await;
        drop(websocket(&url, "v4.channel.k8s.io").await);
    }
    let url = exec_url(&mut node, &id, &["echo", "there"], false, false).await;
    let [_, stdout, ..] = read_channels(&mut websocket(&url, "v4.channel.k8s.io").await).await;
    assert_eq!(stdout, "there\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_on_with_the_input_sent_before_its_client_hung_up() {
    if cannot_run() {
        return;
    }
    let (mut node, _, id) = node_with_container(IDLE, |_| {}).await;
    let script = "echo begun; cat > /part; echo said to nobody; mv /part /whole";
    let url = exec_url(&mut node, &id, &["sh", "-c", script], true, false).await;
    let mut socket = websocket(&url, "v4.channel.k8s.io").await;
    let sent = [b"\0".as_slice(), &[b'x'; 100_000]].concat();
    socket.send(Message::binary(sent)).await.expect("send");
    socket.close(None).await.expect("close");
    while socket.next().await.is_some() {}
    let script = "i=0; while ! test -e /whole && test $i -lt 500; do i=$((i+1)); sleep 0.02; done; wc -c < /whole";
    let url = exec_url(&mut node, &id, &["sh", "-c", script], false, false).await;
    let [_, stdout, ..] = read_channels(&mut websocket(&url, "v4.channel.k8s.io").await).await;
    assert_eq!(stdout.trim(), "100000");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_with_a_terminal_follows_the_size_of_the_window() {
    if cannot_run() {
        return;
    }
    let (mut node, _, id) = node_with_container(IDLE, |_| {}).await;
    let script =
        "tty; while test \"$(stty size)\" != '42 120'; do sleep 0.02; done; echo resized; read line; echo got $line";
    let url = exec_url(&mut node, &id, &["sh", "-c", script], true, true).await;
    let mut socket = websocket(&url, "v5.channel.k8s.io").await;
    let size = [b"\x04".as_slice(), br#"{"Width":120,"Height":42}"#].concat();
    socket.send(Message::binary(size)).await.expect("resize");
    socket.send(Message::binary(b"\0typed\n".to_vec())).await.expect("type");
    let [_, stdout, _, status] = read_channels(&mut socket).await;
    assert!(
        stdout.contains("/dev/pts/0\r\n") && stdout.contains("resized") && stdout.contains("got typed"),
        "{stdout}"
    );
    assert!(status.contains("Success"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_over_spdy_carries_streams_and_the_exit_code() {
    if cannot_run() {
        return;
    }
    let (mut node, _, id) = node_with_container(IDLE, |_| {}).await;
    let url = exec_url(&mut node, &id, &["sh", "-c", "wc -c; exit 4"], true, false).await;
    let headers = [
        ("upgrade", "SPDY/3.1"),
        ("x-stream-protocol-version", "v4.channel.k8s.io"),
        ("x-stream-protocol-version", "v3.channel.k8s.io"),
    ];
    let (name, upgraded) = upgrade(&url, &headers, "x-stream-protocol-version").await;
    assert_eq!(name, "v4.channel.k8s.io");
    let mut client = spdy::client::Client::new(upgraded);
    let error = client.open(&[("streamtype", "error")]).await;
    let stdin = client.open(&[("streamtype", "stdin")]).await;
    let stdout = client.open(&[("streamtype", "stdout")]).await;
    client.open(&[("streamtype", "stderr")]).await;
    for _ in 0..10 {
        client.data(stdin, &[b'x'; 20_000], false).await;
    }
    client.data(stdin, b"", true).await;
    let mut output = Vec::new();
    let mut status = Vec::new();
    while let Some((stream, bytes, _)) = client.next().await {
        match stream {
            found if found == stdout => output.extend_from_slice(&bytes),
            found if found == error => status.extend_from_slice(&bytes),
            _ => {}
        }
    }
    assert_eq!(String::from_utf8_lossy(&output), "200000\n");
    assert!(String::from_utf8_lossy(&status).contains("NonZeroExitCode"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attach_types_into_a_container_and_sees_its_end() {
    if cannot_run() {
        return;
    }
    let script = "read line; echo heard $line; cat; echo end";
    let (mut node, _, id) = node_with_container(script, |config| {
        config.stdin = true;
        config.stdin_once = true;
    })
    .await;
    let request = v1::AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: true, tty: false };
    let url = node.runtime.attach(request).await.expect("a URL").into_inner().url;
    let mut socket = websocket(&url, "v5.channel.k8s.io").await;
    socket.send(Message::binary(b"\0hello\nmore\n".to_vec())).await.expect("type");
    socket.send(Message::binary(vec![255, 0])).await.expect("close the input");
    let [_, stdout, _, status] = read_channels(&mut socket).await;
    assert_eq!(stdout, "heard hello\nmore\nend\n");
    assert!(status.contains("Success"), "{status}");
    assert_eq!(node.wait(&id).await.exit_code, 0);
    assert_eq!(node.log(&id).await, "heard hello\nmore\nend\n");
}

/// Without stdinOnce the container's input stays open, and a client whose input has ended is detached.
#[tokio::test(flavor = "multi_thread")]
async fn attach_ends_with_the_input_and_the_container_goes_on() {
    if cannot_run() {
        return;
    }
    let script = "read line; echo heard $line; read line; echo then $line";
    let (mut node, _, id) = node_with_container(script, |config| config.stdin = true).await;
    for line in ["one", "two"] {
        let request =
            v1::AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: true, tty: false };
        let url = node.runtime.attach(request).await.expect("a URL").into_inner().url;
        let mut socket = websocket(&url, "v5.channel.k8s.io").await;
        socket.send(Message::binary(format!("\0{line}\n").into_bytes())).await.expect("type");
        socket.send(Message::binary(vec![255, 0])).await.expect("close the input");
        let [_, _, _, status] = read_channels(&mut socket).await;
        assert!(status.contains("Success"), "{status}");
    }
    assert_eq!(node.wait(&id).await.exit_code, 0);
    assert_eq!(node.log(&id).await, "heard one\nthen two\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn port_forward_reaches_the_pods_loopback_in_all_wrappings() {
    if cannot_run() {
        return;
    }
    let script = "nc -ll -p 8080 -e /bin/cat";
    let (mut node, sandbox, id) = node_with_container(script, |_| {}).await;
    let listening = "grep -q ':1F90 ' /proc/net/tcp /proc/net/tcp6";
    let deadline = std::time::Instant::now() + support::BOUND;
    while node.exec(&id, &["sh", "-c", listening]).await.expect("exec").exit_code != 0 {
        assert!(std::time::Instant::now() < deadline, "nobody listens in the pod");
    }
    for tunnel in [false, true] {
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![] };
        let url = node.runtime.port_forward(request).await.expect("a URL").into_inner().url;
        let (answer, refused) = match tunnel {
            false => {
                let headers = [("upgrade", "SPDY/3.1"), ("x-stream-protocol-version", "portforward.k8s.io")];
                let (_, upgraded) = upgrade(&url, &headers, "x-stream-protocol-version").await;
                ask(spdy::client::Client::new(upgraded)).await
            }
            true => {
                let socket = websocket(&url, "SPDY/3.1+portforward.k8s.io").await;
                ask(spdy::client::Client::new(unwrap(socket))).await
            }
        };
        assert_eq!(answer, "ping\n", "tunnel: {tunnel}");
        assert!(refused.contains("error forwarding port 81") && refused.contains("refused"), "{refused}");
    }
    for (protocol, digit) in [("v4.channel.k8s.io", 0), ("v4.base64.channel.k8s.io", b'0')] {
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![8080, 81] };
        let url = node.runtime.port_forward(request).await.expect("a URL").into_inner().url;
        let mut socket = websocket(&url, protocol).await;
        let ping = match digit {
            0 => Message::binary(&b"\0ping\n"[..]),
            _ => Message::text("0cGluZwo="),
        };
        socket.send(ping).await.expect("sent");
        let mut received: [Vec<u8>; 4] = Default::default();
        // The first message of every channel is its port.
        while received[0].len() < 7 || received[3].len() < 3 {
            let message = socket.next().await.expect("a message").expect("no error").into_data();
            let content = match digit {
                0 => message[1..].to_vec(),
                _ => base64::engine::general_purpose::STANDARD.decode(&message[1..]).expect("base64"),
            };
            received[usize::from(message[0] - digit)].extend(content);
        }
        assert_eq!(received[0], [&8080u16.to_le_bytes()[..], b"ping\n"].concat(), "{protocol}");
        assert_eq!((&received[1][..], &received[2][..]), (&8080u16.to_le_bytes()[..], &81u16.to_le_bytes()[..]));
        let refused = String::from_utf8_lossy(&received[3][2..]);
        assert!(refused.contains("error forwarding port 81") && refused.contains("refused"), "{refused}");
        socket.close(None).await.expect("closed");
    }
}

/// Sends a request to one port that answers and to one that does not.
async fn ask<I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    mut client: spdy::client::Client<I>,
) -> (String, String) {
    let mut pair = [0; 2];
    for (number, port) in ["8080", "81"].into_iter().enumerate() {
        let request = number.to_string();
        let error = client.open(&[("streamtype", "error"), ("port", port), ("requestid", &request)]).await;
        let data = client.open(&[("streamtype", "data"), ("port", port), ("requestid", &request)]).await;
        client.data(error, b"", true).await;
        pair[number] = if number == 0 { data } else { error };
    }
    client.data(pair[0], b"ping\n", true).await;
    let mut answer = String::new();
    let mut refused = String::new();
    let mut open = 2;
    while open > 0 {
        let Some((stream, bytes, fin)) = client.next().await else { break };
        let content = String::from_utf8_lossy(&bytes).into_owned();
        match pair.iter().position(|found| *found == stream) {
            Some(0) => answer.push_str(&content),
            Some(_) => refused.push_str(&content),
            None => continue,
        }
        open -= usize::from(fin);
    }
    (answer, refused)
}

/// Returns the byte stream inside of a WebSocket.
fn unwrap(mut socket: WebSocketStream<Upgraded>) -> tokio::io::DuplexStream {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 14];
        loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(Message::Binary(bytes))) => far.write_all(&bytes).await.expect("write"),
                    Some(Ok(_)) => {}
                    _ => return,
                },
                length = far.read(&mut buffer) => match length {
                    Ok(length) if length > 0 => {
                        let _ = socket.send(Message::binary(buffer[..length].to_vec())).await;
                    }
                    _ => return,
                },
            }
        }
    });
    near
}
