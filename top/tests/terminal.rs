//! `corten top` in a pseudo-terminal, against an API that a test serves: keys work, and the terminal is restored on
//! every way out.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport};
use corten_top::{Explainer, Settings};
use futures::future::BoxFuture;
use futures::stream::StreamExt;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};

/// The longest wait for a text, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The variable by which this test program is the command itself.
const ROLE: &str = "CORTEN_TOP_TEST";

/// An API with one node, two pods with hostile names, and a log.
struct Api;

fn list(kind: &str, items: Value) -> Value {
    json!({"kind": format!("{kind}List"), "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items})
}

fn pod(name: &str, reason: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "4"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "reason": reason},
    })
}

fn answer(method: &str, path: &str) -> Result<Value, u16> {
    let node =
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1", "uid": "n", "resourceVersion": "3"}});
    let plain = path.split('?').next().unwrap_or_default();
    match (method, plain) {
        ("GET", "/api/v1/nodes") => Ok(list("Node", json!([node]))),
        ("GET", "/api/v1/pods") => {
            Ok(list("Pod", json!([pod("web", ""), pod("hostile", "\u{1b}[2J\u{1b}]0;owned\u{7}")])))
        }
        ("GET", "/api/v1/events") => Ok(list("Event", json!([]))),
        ("GET", "/api/v1/namespaces/a/pods/web") => Ok(pod("web", "")),
        ("GET", "/api/v1/namespaces/a/pods/web/log") => Ok(json!("hello \u{1b}[31mfrom the log")),
        ("DELETE", "/api/v1/namespaces/a/pods/web") => Ok(json!({"kind": "Status", "status": "Success"})),
        _ => Err(404),
    }
}

impl Transport for Api {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>> {
        let path = request.uri().to_string();
        let method = request.method().to_string();
        Box::pin(async move {
            if path.contains("watch=") {
                return Ok(http::Response::new(Body::Events(futures::stream::pending().boxed())));
            }
            let response = match answer(&method, &path) {
                Ok(Value::String(text)) => http::Response::new(Body::Full(Bytes::from(text))),
                Ok(document) => http::Response::new(Body::Full(Bytes::from(document.to_string()))),
                Err(code) => {
                    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "NotFound"});
                    let mut response = http::Response::new(Body::Full(Bytes::from(status.to_string())));
                    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
                    response
                }
            };
            Ok(response)
        })
    }
}

struct Findings;

impl Explainer for Findings {
    fn explain(&self, _: &'static str, _: String, name: String) -> BoxFuture<'static, String> {
        Box::pin(async move { format!("Nothing is wrong with {name}.\n") })
    }
}

/// Is the command itself, if the variable says so; else the test of it.
#[test]
fn the_command() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let settings = Settings {
        client: Client::new(Arc::new(Api)),
        kubeconfig: None,
        namespace: String::new(),
        colors: false,
        explainer: Box::new(Findings),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(corten_top::run(settings)).unwrap();
    std::process::exit(0);
}

/// The command in a pseudo-terminal.
struct Session {
    controller: File,
    /// The other side, which outlives the command: its modes are compared.
    terminal: OwnedFd,
    child: Child,
    output: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Session {
    fn start() -> Session {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal: OwnedFd = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap().into();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let side = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_command", "--nocapture", "--test-threads=1"]).env(ROLE, "1");
        command.stdin(side()).stdout(side()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().unwrap();
        let output: Arc<Mutex<String>> = Arc::default();
        let mut from = File::from(controller.try_clone().unwrap());
        let kept = Arc::clone(&output);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = from.read(&mut bytes) {
                if count == 0 {
                    return;
                }
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Session { controller: File::from(controller), terminal, child, output, reader }
    }

    /// Waits until the command has written a text since the last wait.
    fn until(&self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let mut output = self.output.lock().unwrap();
            if output.contains(text) {
                return std::mem::take(&mut *output);
            }
            assert!(begun.elapsed() < PATIENCE, "never {text:?}: {output:?}");
            drop(output);
            std::thread::yield_now();
        }
    }

    fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(self.terminal.as_fd()).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Waits for the end of the command, and checks that the terminal is as it was.
    fn ends(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        let written = self.until("\u{1b}[?1049l");
        assert!(written.contains("\u{1b}[?25h"), "the cursor is back: {written:?}");
        assert!(!self.is_raw(), "the terminal is in its old mode");
        drop(self.terminal);
        drop(self.controller);
        self.reader.join().unwrap();
        status
    }
}

#[test]
fn keys_work_and_the_terminal_is_restored() {
    let mut session = Session::start();
    let first = session.until("hostile");
    assert!(first.contains("\u{1b}[?1049h"), "{first:?}");
    assert!(!first.contains("\u{1b}]0;") && !first.contains("\u{1b}[2J"), "{first:?}");
    assert!(session.is_raw());
    session.press("\u{1b}[B");
    session.until("> a            web");
    session.press("l");
    let logs = session.until("logs of a/web");
    assert!(!logs.contains("\u{1b}[31m"), "{logs:?}");
    session.press("\u{1b}");
    session.until("q …");
    session.press("d");
    session.until("Nothing is wrong with web.");
    session.press("q");
    session.until("q …");
    session.press("\u{4}");
    session.until("Delete pod a/web?");
    session.press("n");
    session.until("q …");
    session.press("\u{4}");
    session.until("Delete pod a/web?");
    session.press("y");
    session.until("pod web is deleted");
    session.press("/hos\r");
    session.until("filter: hos");
    session.press("q");
    assert!(session.ends().success());
}

#[test]
fn a_signal_restores_the_terminal() {
    let session = Session::start();
    session.until("hostile");
    let pid = rustix::process::Pid::from_raw(i32::try_from(session.child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(session.ends().success());
}

#[test]
fn control_c_restores_the_terminal() {
    let mut session = Session::start();
    session.until("hostile");
    session.press("\u{3}");
    assert!(session.ends().success());
}
