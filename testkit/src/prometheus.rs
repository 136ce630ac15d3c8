//! A stand-in for a Prometheus server: it answers instant queries by a function, and remembers them.

// In a test, a panic is the report.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The time of every sample.
const TIME: f64 = 1_767_225_600.5;

/// The labels and the value of a series.
pub struct Series {
    pub labels: Value,
    pub value: f64,
}

type Answers = Arc<dyn Fn(&str) -> Vec<Series> + Send + Sync>;

/// A server on a loopback port, stopped when it is dropped.
pub struct Prometheus {
    pub port: u16,
    requests: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

/// A query, and the credential that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub path: String,
    pub query: String,
    pub authorization: String,
}

impl Prometheus {
    pub async fn start(answers: impl Fn(&str) -> Vec<Series> + Send + Sync + 'static) -> Prometheus {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let kept = Arc::clone(&requests);
        let answers: Answers = Arc::new(answers);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answers), Arc::clone(&kept)));
            }
        });
        Prometheus { port, requests, task }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answers: Answers, requests: Arc<Mutex<Vec<Asked>>>) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap_or(0);
        if count == 0 {
            return;
        }
        bytes.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = header(head, "content-length").parse().unwrap_or(0);
        if body.len() >= length {
            break (head.to_owned(), body.to_owned());
        }
    };
    let query = decoded(body.strip_prefix("query=").unwrap_or_default());
    requests.lock().unwrap().push(Asked {
        path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        query: query.clone(),
        authorization: header(&head, "authorization"),
    });
    let result: Vec<Value> = answers(&query)
        .into_iter()
        .map(|Series { labels, value }| json!({"metric": labels, "value": [TIME, value.to_string()]}))
        .collect();
    let document = json!({"status": "success", "data": {"resultType": "vector", "result": result}}).to_string();
    let length = document.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{document}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

fn header(head: &str, name: &str) -> String {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// Decodes a value of a form.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).unwrap()
}
