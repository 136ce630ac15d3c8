//! The console of a real cluster: its pages, the one-time link, and the way to the API server. Where there is a Chromium
//! with Playwright, a browser uses it as a person would.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn the_console_has_no_power_but_its_users() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    the_api_server_shows_the_pages_to_every_client(&cluster);
    let console = Console::start(&cluster);
    let token = a_code_is_good_once(&console);
    requests_pass_with_the_token_alone(&console, &token);
    other_hosts_are_refused(&console);
    objects_are_explained(&console, &token);
    the_api_server_answers_questions_with_the_rights_of_its_users(&cluster);
    a_question_needs_no_more_rights_than_its_object(&cluster);
    hostile_questions_are_refused(&cluster);
    commands_run_over_a_websocket(&console, &token);
    a_browser_uses_it(&cluster);
}

/// `corten console`, ended with the test.
struct Console<'a> {
    cluster: &'a Cluster,
    process: Child,
    link: String,
}

impl<'a> Console<'a> {
    fn start(cluster: &'a Cluster) -> Console<'a> {
        let mut command = cluster.machine.command(Path::new(CORTEN));
        command.args(["console", "--no-browser"]).env("HOME", cluster.scratch()).env_remove("KUBECONFIG");
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("corten console runs");
        let mut link = String::new();
        let output = process.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut link).expect("a link");
        Console { cluster, process, link: link.trim().to_owned() }
    }

    fn authority(&self) -> &str {
        let rest = self.link.strip_prefix("http://").expect("a link");
        rest.split('/').next().expect("a host")
    }

    fn code(&self) -> &str {
        self.link.split_once("#code=").expect("a code").1
    }

    /// Sends a request and returns the status and the whole answer.
    fn send(&self, head: &str, body: &str) -> (u16, String) {
        let host = self.authority().to_owned();
        self.send_as(&host, head, body)
    }

    fn send_as(&self, host: &str, head: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!("{head}\r\nHost: {host}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("the request is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), answer)
    }

    fn connect(&self) -> TcpStream {
        let address = self.authority();
        let stream = self.cluster.machine.in_network(|| TcpStream::connect(address)).expect("the console listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a limit");
        stream
    }
}

impl Drop for Console<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn the_api_server_shows_the_pages_to_every_client(cluster: &Cluster) {
    let page = cluster.kubectl(&["get", "--raw", "/console/"]);
    assert!(page.contains("<script type=\"module\" src=\"app.js\">"), "{page}");
    let anonymous =
        ["get", "--raw", "/console/app.js", "--as", "system:anonymous", "--as-group", "system:unauthenticated"];
    assert!(cluster.kubectl(&anonymous).contains("import"), "a client without a credential reads it");
    let refused = cluster.kubectl_fails(&["get", "--raw", "/api/v1/pods", "--as", "system:anonymous"]);
    assert!(refused.contains("forbidden"), "{refused}");
}

fn a_code_is_good_once(console: &Console<'_>) -> String {
    let body = json!({"code": console.code()}).to_string();
    let head = "POST /console/session HTTP/1.1\r\nContent-Type: application/json";
    let (status, answer) = console.send(head, &body);
    assert_eq!(status, 200, "{answer}");
    let document: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let (again, _) = console.send(head, &body);
    assert_eq!(again, 403, "a second time");
    document["token"].as_str().expect("a token").to_owned()
}

fn requests_pass_with_the_token_alone(console: &Console<'_>, token: &str) {
    let (status, answer) = console.send("GET /console/ HTTP/1.1", "");
    assert!(status == 200 && answer.to_lowercase().contains("content-security-policy: default-src 'none'"), "{answer}");
    let (status, answer) = console.send("GET /api/v1/namespaces HTTP/1.1", "");
    assert_eq!(status, 403, "the gateway adds no credential: {answer}");
    let (status, answer) =
        console.send(&format!("GET /api/v1/namespaces HTTP/1.1\r\nAuthorization: Bearer {token}"), "");
    assert!(status == 200 && answer.contains("kube-system"), "{answer}");
    let (status, _) = console.send("GET /api/v1/namespaces HTTP/1.1\r\nAuthorization: Bearer no", "");
    assert_eq!(status, 401);
}

fn other_hosts_are_refused(console: &Console<'_>) {
    let (status, _) = console.send_as("rebound.example", "GET /console/ HTTP/1.1", "");
    assert_eq!(status, 403);
}

fn objects_are_explained(console: &Console<'_>, token: &str) {
    console.cluster.kubectl(&["create", "deployment", "broken", "--image", "nowhere.invalid/none:1"]);
    let head = format!(
        "GET /console/why?group=apps&resource=deployments&namespace=default&name=broken HTTP/1.1\r\n\
         Authorization: Bearer {token}"
    );
    let explained = testkit::wait::until("the image is named as the cause", TIMEOUT, || {
        let (status, answer) = console.send(&head, "");
        match status == 200 && answer.contains("The image nowhere.invalid/none:1 of container none is not there.") {
            true => Ok(answer),
            false => Err(answer),
        }
    });
    assert!(explained.contains("corten image import"), "{explained}");
    let (status, _) = console.send(&head.replace(token, "no"), "");
    assert_ne!(status, 200, "a wrong token explains nothing");
    let (status, answer) = console.send(&head.replace("/console/why", "/console/trace"), "");
    assert!(status == 200 && answer.contains("Deployment/broken"), "{answer}");
}

fn the_api_server_answers_questions_with_the_rights_of_its_users(cluster: &Cluster) {
    let path =
        |question: &str| format!("/console/{question}?group=apps&resource=deployments&namespace=default&name=broken");
    let explained = cluster.kubectl(&["get", "--raw", &path("why")]);
    assert!(explained.contains("The image nowhere.invalid/none:1 of container none is not there."), "{explained}");
    let traced: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path("trace")])).expect("JSON");
    let steps = traced["steps"].as_array().expect("steps");
    let has = |component: &str, kind: &str| {
        let is_step = |step: &&Value| {
            step["component"] == component && step["object"].as_str().is_some_and(|object| object.starts_with(kind))
        };
        steps.iter().any(|step| is_step(&step))
    };
    assert!(has("client", "Deployment/broken"), "{traced}");
    assert!(has("controllers", "ReplicaSet/broken-") && has("scheduler", "Pod/broken-"), "{traced}");
    for question in ["why", "trace"] {
        let stranger = ["get", "--raw", &path(question), "--as", "stranger"];
        let refused = cluster.kubectl_fails(&stranger);
        assert!(!refused.contains("nowhere.invalid"), "{refused}");
        assert!(refused.contains("forbidden"), "{refused}");
        let anonymous = ["--as", "system:anonymous", "--as-group", "system:unauthenticated"];
        let refused = cluster.kubectl_fails(&[&["get", "--raw", &path(question)][..], &anonymous].concat());
        assert!(refused.contains("You must be logged in"), "{refused}");
    }
}

/// A user of a namespace may not read nodes, which the scheduler's plugins need; the rest of the answer is there.
fn a_question_needs_no_more_rights_than_its_object(cluster: &Cluster) {
    cluster.kubectl(&[
        "run",
        "homeless",
        "--image",
        IMAGE,
        "--overrides",
        r#"{"spec":{"nodeSelector":{"no":"where"}}}"#,
    ]);
    cluster.kubectl_wait(&["wait", "--for=condition=PodScheduled=false", "pod/homeless"]);
    cluster.kubectl(&["create", "rolebinding", "guest", "--clusterrole", "view", "--user", "guest"]);
    let path = "/console/why?group=&resource=pods&namespace=default&name=homeless";
    let explained = cluster.kubectl(&["get", "--raw", path, "--as", "guest"]);
    assert!(explained.contains("No node takes it.") && explained.contains("is forbidden"), "{explained}");
}

/// A name of a query is a name and nothing else: no path, and no request of another kind.
fn hostile_questions_are_refused(cluster: &Cluster) {
    for name in ["..%2F..%2Fsecrets", "homeless%2Flog", "%2e%2e"] {
        for question in ["why", "trace"] {
            let path = format!("/console/{question}?group=&resource=pods&namespace=default&name={name}");
            let refused = cluster.kubectl_fails(&["get", "--raw", &path]);
            assert!(refused.contains("is not a name"), "{question} {name}: {refused}");
        }
    }
}

fn commands_run_over_a_websocket(console: &Console<'_>, token: &str) {
    console.cluster.kubectl(&["run", "shell", "--image", IMAGE, "--", "sleep", "3600"]);
    console.cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/shell"]);
    let encoded = console_token(token);
    let head = format!(
        "GET /api/v1/namespaces/default/pods/shell/exec?command=echo&command=42-done&stdout=true HTTP/1.1\r\n\
         Host: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}\r\n\r\n",
        console.authority()
    );
    let mut stream = console.connect();
    stream.write_all(head.as_bytes()).expect("the request is sent");
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while !String::from_utf8_lossy(&answer).contains("42-done") {
        let count = stream.read(&mut chunk).expect("the output of the command");
        assert!(count > 0, "the connection ended: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&chunk[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
}

fn console_token(token: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token)
}

fn a_browser_uses_it(cluster: &Cluster) {
    let Some(chromium) = browser() else {
        eprintln!("skipped: no Chromium with Playwright is installed");
        return;
    };
    let reader = cluster.scratch().join("reader");
    let admin = cluster.scratch().join("administrator");
    for (name, role, file) in [("reader", "view", &reader), ("administrator", "cluster-admin", &admin)] {
        cluster.kubectl(&["create", "serviceaccount", name]);
        let subject = format!("--serviceaccount=default:{name}");
        cluster.kubectl(&["create", "clusterrolebinding", name, "--clusterrole", role, &subject]);
        fs::write(file, cluster.kubectl(&["create", "token", name])).expect("a token");
    }
    let console = Console::start(cluster);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../console/tests/browser.py");
    let mut command = cluster.machine.command(Path::new("/usr/bin/env"));
    command.arg("python3").arg(script).arg(&console.link).arg(&admin).arg(&reader).env("CHROMIUM", chromium);
    let output = command.output().expect("python3 runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    println!("{printed}");
}

/// Returns the Chromium of this machine, if Playwright is there too.
fn browser() -> Option<PathBuf> {
    let chromium = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].map(PathBuf::from);
    let chromium = chromium.into_iter().find(|path| path.exists())?;
    let playwright = Command::new("python3").args(["-c", "import playwright"]).stderr(Stdio::null()).status();
    playwright.is_ok_and(|status| status.success()).then_some(chromium)
}
