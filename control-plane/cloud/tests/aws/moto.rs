//! moto's server as AWS, and a door before it that counts calls, breaks them, and ends them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corten_cloud::provider::Provider;
use corten_cloud::providers::{Setup, open};
use serde_json::Value;

const REGION: &str = "eu-central-1";

/// A server that ends with the test.
pub struct Moto {
    process: Child,
    python: PathBuf,
    address: SocketAddr,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Moto {
    /// Starts a server; none, with a sentence, if there is no moto.
    pub fn start() -> Option<Moto> {
        let Some(program) = std::env::var_os("MOTO_SERVER").map(PathBuf::from) else {
            eprintln!("skipped: MOTO_SERVER names no moto_server");
            return None;
        };
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let process = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let moto = Moto { process, python: program.with_file_name("python"), address };
        let deadline = Instant::now() + Duration::from_secs(300);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "moto_server does not listen");
            std::thread::yield_now();
        }
        Some(moto)
    }

    /// Runs lines of Python with boto3's clients `ec2` and `elb`, and returns the JSON that they print.
    pub fn boto3(&self, script: &str) -> Value {
        let head = format!(
            "import boto3, json\n\
             given = dict(endpoint_url='http://{}', region_name='{REGION}', aws_access_key_id='A', aws_secret_access_key='S')\n\
             ec2 = boto3.client('ec2', **given)\nelb = boto3.client('elbv2', **given)\n",
            self.address
        );
        let output = Command::new(&self.python).args(["-c", &(head + script)]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Sends a raw query, without our client and signer; returns the document.
    pub fn query(&self, service: &str, form: &str) -> String {
        let scope = format!("Credential=A/20260101/{REGION}/{service}/aws4_request");
        let request = format!(
            "POST / HTTP/1.1\r\nhost: {}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             authorization: AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{form}",
            self.address,
            form.len()
        );
        String::from_utf8(exchange(self.address, request.as_bytes())).unwrap()
    }

    /// Counts the load balancers, target groups and rules that carry a name.
    pub fn left(&self, name: &str) -> Left {
        let elb = |action: &str| self.query("elasticloadbalancing", &format!("Action={action}&Version=2015-12-01"));
        let rules = self.query("ec2", "Action=DescribeSecurityGroups&Version=2016-11-15");
        Left {
            balancers: elb("DescribeLoadBalancers").matches(&format!("<LoadBalancerName>{name}<")).count(),
            groups: elb("DescribeTargetGroups").matches("<TargetGroupName>").count(),
            rules: rules.matches(&format!("kubernetes.io/rule/nlb/client={name}<")).count(),
        }
    }
}

/// The objects of a load balancer that AWS has.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    pub balancers: usize,
    pub groups: usize,
    pub rules: usize,
}

/// The faults of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The answer to this call is lost, and no later call arrives: the manager was killed.
    After(usize),
    /// Calls fail before or after their effect, and are throttled, by the numbers of this seed.
    Random(u64),
    /// Every call is refused with this code.
    Refuse(&'static str),
}

struct State {
    fault: Fault,
    calls: usize,
}

/// A server before moto.
#[derive(Clone)]
pub struct Door {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Door {
    pub fn before(moto: &Moto) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Door {
            address: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(State { fault: Fault::None, calls: 0 })),
        };
        let state = Arc::clone(&door.state);
        let target = moto.address;
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(stream, target, &state));
            }
        });
        door
    }

    /// Sets the fault, and counts calls from zero.
    pub fn set(&self, fault: Fault) {
        *self.state.lock().unwrap() = State { fault, calls: 0 };
    }

    pub fn calls(&self) -> usize {
        self.state.lock().unwrap().calls
    }

    /// Opens a provider that speaks to this door, as a new process would.
    pub async fn provider(&self) -> Arc<dyn Provider> {
        open("aws", &self.setup()).await.unwrap()
    }

    pub fn setup(&self) -> Setup {
        let variables: BTreeMap<&str, String> = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", "A".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "S".to_owned()),
        ]
        .into();
        Setup {
            config: String::new(),
            cluster: "c".to_owned(),
            roots: String::new(),
            variable: Box::new(move |name| variables.get(name).cloned()),
        }
    }
}

/// The outcome of one call at a door.
enum Passage {
    Forward,
    Lose,
    Drop,
    Answer(&'static str, &'static str),
}

fn passage(state: &Mutex<State>) -> Passage {
    let mut state = state.lock().unwrap();
    let call = state.calls;
    state.calls += 1;
    match state.fault {
        Fault::None => Passage::Forward,
        Fault::After(last) if call < last => Passage::Forward,
        Fault::After(last) if call == last => Passage::Lose,
        Fault::After(_) => Passage::Drop,
        Fault::Refuse(code) => Passage::Answer("400 Bad Request", code),
        Fault::Random(seed) => {
            // A generator of numbers whose sequence the seed and the call decide.
            let mut number = seed.wrapping_add(call as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            match (number >> 33) % 20 {
                0 => Passage::Lose,
                1 => Passage::Drop,
                2 => Passage::Answer("503 Service Unavailable", "RequestLimitExceeded"),
                3 => Passage::Answer("400 Bad Request", "Throttling"),
                4 => Passage::Answer("500 Internal Server Error", "InternalError"),
                _ => Passage::Forward,
            }
        }
    }
}

fn serve(mut stream: TcpStream, target: SocketAddr, state: &Mutex<State>) {
    let Some(request) = message(&mut stream) else { return };
    match passage(state) {
        Passage::Drop => {}
        Passage::Lose => drop(exchange(target, &request)),
        Passage::Forward => {
            let _ = stream.write_all(&exchange(target, &request));
        }
        Passage::Answer(status, code) => {
            let body = format!("<R><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></R>");
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes());
        }
    }
}

/// Sends a request; returns the answer.
fn exchange(target: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(target).unwrap();
    stream.write_all(request).unwrap();
    message(&mut stream).unwrap_or_default()
}

/// Reads one message with a length; none if the peer closed before.
fn message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        bytes.extend_from_slice(line.as_bytes());
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    bytes.extend_from_slice(&body);
    Some(bytes)
}
