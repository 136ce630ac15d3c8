//! moto's server as AWS, and a door before it that counts calls, breaks them, and ends them.
//!
//! `MOTO_SERVER` names the program `moto_server` of a Python environment with `moto[server,ec2,elbv2]` and boto3. Without
//! it there is no AWS, and tests say so and pass.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Notify;

const REGION: &str = "eu-central-1";

/// Makes a VPC with two subnets, a security group, a route table and `NODES` instances; prints their IDs.
const WORLD: &str = "
tags = lambda kind: [dict(ResourceType=kind, Tags=[dict(Key='kubernetes.io/cluster/c', Value='owned')])]
vpc = ec2.create_vpc(CidrBlock='10.0.0.0/16', TagSpecifications=tags('vpc'))['Vpc']['VpcId']
ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={'Value': True})
subnets = [ec2.create_subnet(VpcId=vpc, CidrBlock='10.0.%d.0/24' % i, AvailabilityZone='eu-central-1' + z,
           TagSpecifications=tags('subnet'))['Subnet']['SubnetId'] for i, z in [(1, 'a'), (2, 'b')]]
group = ec2.create_security_group(GroupName='nodes', Description='d', VpcId=vpc,
        TagSpecifications=tags('security-group'))['GroupId']
ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[dict(IpProtocol='tcp', FromPort=22, ToPort=22,
        IpRanges=[dict(CidrIp='192.0.2.0/24', Description='mine')])])
table = ec2.create_route_table(VpcId=vpc, TagSpecifications=tags('route-table'))['RouteTable']['RouteTableId']
run = lambda i: ec2.run_instances(ImageId='ami-12c6146b', MinCount=1, MaxCount=1, InstanceType='t3.small',
        SubnetId=subnets[i % 2], SecurityGroupIds=[group])['Instances'][0]
made = [run(i) for i in range(NODES)]
print(json.dumps(dict(vpc=vpc, subnets=subnets, group=group, table=table, nodes=[dict(id=i['InstanceId'],
        name=i['PrivateDnsName'], ip=i['PrivateIpAddress'], zone=i['Placement']['AvailabilityZone']) for i in made])))
";

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

    /// Makes a VPC with so many instances, and returns the IDs of all parts.
    pub fn world(&self, nodes: usize) -> Value {
        self.boto3(&format!("NODES = {nodes}{WORLD}"))
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
}

/// The faults of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every call passes.
    None,
    /// The answer to this call is lost, and no later call arrives: the manager was killed.
    After(usize),
    /// Calls fail before or after their effect, and are throttled, by the numbers of this seed.
    Random(u64),
    /// Every call is refused with this code.
    Refuse(&'static str),
    /// The first call of an action is refused.
    RefuseFirst { action: &'static str, code: &'static str, message: &'static str },
}

struct State {
    fault: Fault,
    calls: usize,
    /// The calls by their action.
    actions: BTreeMap<String, usize>,
}

impl State {
    fn new(fault: Fault) -> State {
        State { fault, calls: 0, actions: BTreeMap::new() }
    }
}

/// A server before moto.
#[derive(Clone)]
pub struct Door {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// Notified when the last call of [`Fault::After`] has had its effect.
    killed: Arc<Notify>,
}

impl Door {
    /// Opens a door before a server.
    pub fn before(moto: &Moto) -> Door {
        Door::on(TcpListener::bind("127.0.0.1:0").unwrap(), moto)
    }

    /// Opens a door at a listener, which may be that of another network.
    pub fn on(listener: TcpListener, moto: &Moto) -> Door {
        let door = Door {
            address: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(State::new(Fault::None))),
            killed: Arc::new(Notify::new()),
        };
        let state = Arc::clone(&door.state);
        let killed = Arc::clone(&door.killed);
        let target = moto.address;
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                let killed = Arc::clone(&killed);
                std::thread::spawn(move || serve(stream, target, &state, &killed));
            }
        });
        door
    }

    /// Sets the fault, and counts calls from zero.
    pub fn set(&self, fault: Fault) {
        *self.state.lock().unwrap() = State::new(fault);
    }

    /// Carries out a call of a manager that ends after the `last` request.
    pub async fn kill<T: std::fmt::Debug, E: std::fmt::Debug>(
        &self,
        last: usize,
        call: impl Future<Output = Result<T, E>>,
    ) {
        self.set(Fault::After(last));
        tokio::select! {
            () = self.killed.notified() => {}
            // The manager may notice that the answer is lost before it ends.
            result = call => {
                result.expect_err("the last answer is lost");
                self.killed.notified().await;
            }
        }
        self.set(Fault::None);
    }

    /// Returns the number of calls since the fault was set.
    pub fn calls(&self) -> usize {
        self.state.lock().unwrap().calls
    }

    /// Returns the calls since the fault was set, by their action.
    pub fn actions(&self) -> BTreeMap<String, usize> {
        self.state.lock().unwrap().actions.clone()
    }

    /// Returns the variables of a process whose calls of AWS go through this door.
    pub fn variables(&self) -> BTreeMap<&'static str, String> {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", "A".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "S".to_owned()),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", self.address)),
        ]
        .into()
    }
}

/// The outcome of one call at a door.
enum Passage {
    Forward,
    Kill,
    Lose,
    Drop,
    Answer(Answer),
}

/// An answer of the door itself.
struct Answer {
    status: &'static str,
    code: &'static str,
    message: &'static str,
}

impl Passage {
    fn answer(status: &'static str, code: &'static str) -> Passage {
        Passage::Answer(Answer { status, code, message: "no" })
    }
}

/// Returns the action of a request.
fn action(request: &[u8]) -> String {
    let request = String::from_utf8_lossy(request);
    let action = request.split_once("\r\n\r\nAction=").and_then(|(_, body)| body.split('&').next());
    action.unwrap_or_default().to_owned()
}

fn passage(state: &Mutex<State>, request: &[u8]) -> Passage {
    let mut state = state.lock().unwrap();
    let call = state.calls;
    state.calls += 1;
    let action = action(request);
    let of_action = state.actions.entry(action.clone()).or_default();
    *of_action += 1;
    let is_first = *of_action == 1;
    match state.fault {
        Fault::None => Passage::Forward,
        Fault::After(last) if call < last => Passage::Forward,
        Fault::After(last) if call == last => Passage::Kill,
        Fault::After(_) => Passage::Drop,
        Fault::Refuse(code) => Passage::answer("400 Bad Request", code),
        Fault::RefuseFirst { action: refused, code, message } => match is_first && action == refused {
            true => Passage::Answer(Answer { status: "400 Bad Request", code, message }),
            false => Passage::Forward,
        },
        Fault::Random(seed) => {
            // A generator of numbers whose sequence the seed and the call decide.
            let mut number = seed.wrapping_add(call as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            match (number >> 33) % 20 {
                0 => Passage::Lose,
                1 => Passage::Drop,
                2 => Passage::answer("503 Service Unavailable", "RequestLimitExceeded"),
                3 => Passage::answer("400 Bad Request", "Throttling"),
                4 => Passage::answer("500 Internal Server Error", "InternalError"),
                _ => Passage::Forward,
            }
        }
    }
}

fn serve(mut stream: TcpStream, target: SocketAddr, state: &Mutex<State>, killed: &Notify) {
    let Some(request) = message(&mut stream) else { return };
    match passage(state, &request) {
        Passage::Drop => {}
        Passage::Kill => {
            exchange(target, &request);
            killed.notify_one();
        }
        Passage::Lose => drop(exchange(target, &request)),
        Passage::Forward => {
            let answer = exchange(target, &request);
            // The lists of moto's threads change while others read them; the call is repeated, and counts once.
            if answer.starts_with(b"HTTP/1.1 500") {
                let mut state = state.lock().unwrap();
                state.actions.entry(action(&request)).and_modify(|count| *count = count.saturating_sub(1));
            }
            let _ = stream.write_all(&answer);
        }
        Passage::Answer(Answer { status, code, message }) => {
            let body =
                format!("<R><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></R>");
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
