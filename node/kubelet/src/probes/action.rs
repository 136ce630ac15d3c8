//! One execution of a probe: by command, HTTP, TCP or gRPC.

use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Container, Probe};
use tokio::net::TcpStream;

use super::grpc;
use crate::cri::Runtime;
use crate::error::Error;
use crate::http::dial_error;
use crate::lifecycle::http_get;
use crate::pod::spec;

const MAX_OUTPUT: usize = 10 * 1024;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// Success with a warning (a redirect).
    Warning(String),
    Failure(String),
    /// The probe itself could not run; it counts as a failure.
    Error(String),
}

impl Outcome {
    pub fn is_success(&self) -> bool {
        matches!(self, Outcome::Success | Outcome::Warning(_))
    }
}

pub async fn probe(
    runtime: &Runtime,
    probe: &Probe,
    container: &Container,
    container_id: &str,
    pod_ip: &str,
    timeout: Duration,
) -> Outcome {
    if let Some(action) = &probe.exec {
        return exec(runtime, container_id, action.command.as_deref().unwrap_or_default(), timeout).await;
    }
    if let Some(action) = &probe.http_get {
        return match http_get(action, container, pod_ip, "kube-probe/1.36") {
            Ok(get) => http(get.send(timeout).await),
            Err(error) => Outcome::Error(error.to_string()),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(pod_ip);
        return match spec::port_number(container, &action.port) {
            Some(port) => tcp(host, port, timeout).await,
            None => Outcome::Error(format!("couldn't find port: {:?}", action.port)),
        };
    }
    if let Some(action) = &probe.grpc {
        let service = action.service.as_deref().unwrap_or_default();
        return grpc::check(pod_ip, action.port, service, timeout).await;
    }
    Outcome::Error(format!("missing probe handler for {}", container.name))
}

async fn exec(runtime: &Runtime, id: &str, command: &[String], timeout: Duration) -> Outcome {
    match runtime.exec_sync(id, command, timeout).await {
        Ok(output) => {
            let mut text = output.stdout;
            text.extend(output.stderr);
            text.truncate(MAX_OUTPUT);
            let text = String::from_utf8_lossy(&text).into_owned();
            if output.exit_code == 0 { Outcome::Success } else { Outcome::Failure(text) }
        }
        Err(Error::Runtime(status)) if status.code() == tonic::Code::DeadlineExceeded => Outcome::Failure(format!(
            "command timed out: {:?} timed out after {}s",
            command.join(" "),
            timeout.as_secs()
        )),
        Err(error) => Outcome::Error(error.to_string()),
    }
}

fn http(answer: Result<crate::http::Answer, String>) -> Outcome {
    match answer {
        Ok(answer) if (200..300).contains(&answer.status) => Outcome::Success,
        Ok(answer) if (300..400).contains(&answer.status) => {
            Outcome::Warning(format!("Probe terminated redirects, Response body: {}", answer.body))
        }
        Ok(answer) => Outcome::Failure(format!("HTTP probe failed with statuscode: {}", answer.status)),
        Err(error) => Outcome::Failure(error),
    }
}

async fn tcp(host: &str, port: u16, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(error)) => Outcome::Failure(dial_error(host, port, &error)),
        Err(_) => Outcome::Failure(format!("dial tcp {host}:{port}: i/o timeout")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::http::Get;

    /// Serves one connection with the given response.
    async fn server(answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        port
    }

    fn get(port: u16) -> Get {
        Get {
            https: false,
            host: "127.0.0.1".into(),
            port,
            path: "/healthz".into(),
            headers: vec![],
            user_agent: "kube-probe/1.36".into(),
        }
    }

    #[tokio::test]
    async fn http_probes_read_the_status() {
        for (answer, outcome) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", Outcome::Success),
            (
                "HTTP/1.1 302 Found\r\nlocation: http://0.0.0.0/\r\ncontent-length: 5\r\n\r\nthere",
                Outcome::Warning("Probe terminated redirects, Response body: there".into()),
            ),
            (
                "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n",
                Outcome::Failure("HTTP probe failed with statuscode: 503".into()),
            ),
        ] {
            let port = server(answer).await;
            assert_eq!(http(get(port).send(Duration::from_secs(300)).await), outcome);
        }
    }

    #[tokio::test]
    async fn a_closed_port_is_a_failure_in_words() {
        // No other test listens on this address: on a shared address, the port may be in use at once.
        let listener = TcpListener::bind("127.6.6.6:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(tcp("127.6.6.6", port, Duration::from_secs(300)).await, Outcome::Success);
        drop(listener);
        let refused = format!("dial tcp 127.6.6.6:{port}: connect: connection refused");
        assert_eq!(tcp("127.6.6.6", port, Duration::from_secs(300)).await, Outcome::Failure(refused));
    }
}
