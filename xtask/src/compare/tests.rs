//! Reading requests and answers, and comparing them; then two of our own API servers, between which nothing may differ.

use std::process::Child;

use serde_json::{Value, json};
use testkit_machine::machine::Machine;
use testkit_machine::{tools as programs, wait};

use super::*;

#[test]
fn the_requests_of_the_tree_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the tree");
    let count = |file: &PathBuf| File::parse(&std::fs::read_to_string(file).unwrap()).unwrap().requests().count();
    let requests: usize = of_tree(root).unwrap().iter().map(count).sum();
    assert!(requests > 100, "{requests}");
}

#[test]
fn answers_are_read() {
    let plain =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Type: a\r\nWarning: 2\r\nWarning: 1\r\n\r\nbody";
    let answer = Answer::parse(plain).unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (201, &b"body"[..]));
    assert_eq!(answer.header("warning"), ["1", "2"]);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\n";
    assert_eq!(Answer::parse(chunked).unwrap().body, b"abcd");
    assert!(Answer::parse(&chunked[..chunked.len() - 12]).is_err());
}

fn answer(body: &Value) -> (Answer, Mask) {
    let mut mask = Mask::default();
    mask.learn(body);
    (Answer { status: 200, headers: Vec::new(), body: body.to_string().into_bytes() }, mask)
}

#[test]
fn the_choices_of_a_server_are_no_differences() {
    let of = |name: &str, uid: &str, version: &str, time: &str, value: i32| {
        answer(&json!({
            "metadata": {"generateName": "a-", "name": name, "uid": uid, "resourceVersion": version,
                "creationTimestamp": time},
            "message": format!("{name} of {uid} at {time}"), "value": value,
        }))
    };
    let first = of("a-x7", "4b1f6c1e-0000-4000-8000-000000000001", "7", "2026-01-01T00:00:00Z", 1);
    let second = of("a-9q", "4b1f6c1e-0000-4000-8000-000000000002", "9", "2026-01-02T00:00:00.5Z", 1);
    assert_eq!(difference::between(&first.0, &first.1, &second.0, &second.1), Vec::<String>::new());
    let third = of("a-9q", "4b1f6c1e-0000-4000-8000-000000000002", "9", "2026-01-02T00:00:00Z", 2);
    assert_eq!(difference::between(&first.0, &first.1, &third.0, &third.1), [".value: 1 and 2"]);
    let refused = Answer { status: 404, headers: vec![("warning".into(), "x".into())], body: b"text".to_vec() };
    let found = difference::between(&first.0, &first.1, &refused, &Mask::default());
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn the_command_line_is_read() {
    let wanted = parse(&["--ours", "a", "--theirs", "b", "--most", "3", "c.http"]).unwrap();
    assert_eq!((wanted.most, wanted.files.len()), (Some(3), 1));
    for wrong in
        [&["--ours", "a"][..], &["--ours"], &["--other", "a"], &["--ours", "a", "--theirs", "b", "--most", "x"]]
    {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}

/// An API server that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of the same build; none if only this package was built.
fn corten() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("a test has a path");
    let program = test.ancestors().nth(2).expect("target/debug").join("corten");
    if program.exists() {
        return Some(program);
    }
    assert!(std::env::var_os("CI").is_none(), "build the workspace first: its API server is compared with itself");
    eprintln!("skipped: {} is not built", program.display());
    None
}

#[test]
fn a_server_does_not_differ_from_itself() {
    let Some(program) = corten().filter(|_| programs::is_root()) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the tree");
    let directory = tempfile::tempdir().unwrap();
    let machine = Machine::boot();
    let start = |name: &str, port: &str| {
        let place = directory.path().join(name);
        let mut command = machine.command(&program);
        command.args(["apiserver", "--bind-address", "127.0.0.1", "--port", port, "--log", "error"]);
        command.arg("--data-dir").arg(place.join("data")).arg("--run-dir").arg(place.join("run"));
        let running = Running(command.spawn().expect("the API server starts"));
        (running, place.join("data/kubeconfig/admin.conf"))
    };
    let (_ours, first) = start("a", "7001");
    let (_theirs, second) = start("b", "7002");
    let kubectl = programs::kubectl();
    let ready = Request { method: "GET".into(), path: "/readyz".into(), ..Request::default() };
    let servers = [&first, &second].map(|kubeconfig| {
        wait::until("the API server", wait::BOUND, || {
            let server = Server::from_kubeconfig(&kubectl, kubeconfig).map_err(|error| format!("{error:#}"))?;
            let answer = machine.in_network(|| server.ask(&ready)).map_err(|error| format!("{error:#}"))?;
            if answer.status == 200 { Ok(server) } else { Err(format!("{answer:?}")) }
        })
    });
    let files = of_tree(root).unwrap();
    let report = machine.in_network(|| compare(&servers[0], &servers[1], &files)).unwrap();
    assert_eq!(report.differ, 0, "{}", report.lines.join("\n"));
    assert!(report.requests > 100, "{} requests", report.requests);
}
