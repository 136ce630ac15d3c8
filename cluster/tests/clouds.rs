//! The cloud controller manager as a process, with an API server of its own and moto's server as AWS: killed again and
//! again while users change Services and nodes, and refused by the cloud.
//!
//! boto3 judges what there is in the cloud. The tests need root and `MOTO_SERVER`; without them they say so and pass.
//! `CLOUD_KILLS=100 CLOUD_SEED=7` kills more often, and at other moments.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::cluster::Cluster;
use testkit::interruption::{Running, number};
use testkit::random::Random;
use testkit::{tools, wait};
use testkit_aws::{Door, Fault, Moto};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The nodes, each with an instance. The last one comes and goes.
const NODES: usize = 4;
/// The longest time that a manager runs before it is killed.
const LIFE: Duration = Duration::from_millis(1500);

/// Prints the load balancers with their ports and targets, and everything else that the manager makes.
const STATE: &str = "
out = {}
for b in elb.describe_load_balancers()['LoadBalancers']:
    tags = elb.describe_tags(ResourceArns=[b['LoadBalancerArn']])['TagDescriptions'][0]['Tags']
    name = dict((t['Key'], t['Value']) for t in tags).get('kubernetes.io/service-name', b['LoadBalancerName'])
    of = lambda l: elb.describe_target_health(TargetGroupArn=l['DefaultActions'][0]['TargetGroupArn'])
    listeners = elb.describe_listeners(LoadBalancerArn=b['LoadBalancerArn'])['Listeners']
    out[name] = dict(dns=b['DNSName'], ports={str(l['Port']): sorted(t['Target']['Id']
        for t in of(l)['TargetHealthDescriptions']) for l in listeners})
rules = [r.get('Description', '') for g in ec2.describe_security_groups(Filters=[dict(Name='group-name',
    Values=['nodes'])])['SecurityGroups'] for p in g['IpPermissions'] for r in p['IpRanges']]
routes = sorted(r['DestinationCidrBlock'] for t in ec2.describe_route_tables()['RouteTables'] for r in t['Routes']
    if r['DestinationCidrBlock'].startswith('10.244.'))
tags = len(ec2.describe_tags(Filters=[dict(Name='key', Values=['kubernetes.io/cluster/c'])])['Tags'])
print(json.dumps(dict(balancers=out, groups=len(elb.describe_target_groups()['TargetGroups']), rules=len(rules),
    routes=routes, tags=tags)))
";

/// An API server, AWS behind a door, and the instances of nodes.
struct Site {
    _apiserver: Running,
    cluster: Cluster,
    moto: Moto,
    door: Door,
    world: Value,
}

impl Site {
    /// Starts it; none, with a sentence, if something is missing.
    fn start() -> Option<Site> {
        if !tools::is_root() {
            eprintln!("skipped: a machine needs root");
            return None;
        }
        let moto = Moto::start()?;
        let world = moto.world(NODES);
        let cluster = Cluster::machine(CORTEN);
        let door = Door::on(cluster.machine.in_network(|| TcpListener::bind("127.0.0.1:0").unwrap()), &moto);
        let data = cluster.data_dir().to_string_lossy().into_owned();
        let apiserver = process(&cluster, "apiserver.log", &["apiserver", "--data-dir", &data], &[]);
        let site = Site { _apiserver: apiserver, cluster, moto, door, world };
        wait::until("the API server", wait::BOUND, || site.succeeds(&["get", "--raw", "/readyz"]));
        Some(site)
    }

    /// Starts the manager, with these variables beside those of the door.
    fn manager(&self, variables: &[(&str, &str)]) -> Running {
        let kubeconfig = self.kubeconfig("cloud-controller-manager");
        let arguments = ["cloud-controller-manager", "--kubeconfig", &kubeconfig, "--cloud-provider", "aws"];
        let more = ["--cluster-name", "c", "--configure-cloud-routes", "--leader-elect=false"];
        let door = self.door.variables();
        let mut all: Vec<(&str, &str)> = door.iter().map(|(name, value)| (*name, value.as_str())).collect();
        all.extend(variables);
        process(&self.cluster, "manager.log", &[&arguments[..], &more].concat(), &all)
    }

    fn kubeconfig(&self, name: &str) -> String {
        self.cluster.data_dir().join(format!("kubeconfig/{name}.conf")).to_string_lossy().into_owned()
    }

    fn kubectl_command(&self, arguments: &[&str]) -> Command {
        self.cluster.kubectl_command(&[&["--kubeconfig", &self.kubeconfig("admin")], arguments].concat())
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.cluster.kubectl(&[&["--kubeconfig", &self.kubeconfig("admin")], arguments].concat())
    }

    /// Applies an object, again where it is deleted between the two requests of kubectl.
    fn apply(&self, object: &Value) {
        let path = self.cluster.scratch().join("object.json");
        std::fs::write(&path, object.to_string()).unwrap();
        wait::until("an object to be applied", wait::BOUND, || {
            self.succeeds(&["apply", "-f", &path.to_string_lossy()])
        });
    }

    fn succeeds(&self, arguments: &[&str]) -> Result<(), String> {
        let output = self.kubectl_command(arguments).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    /// Makes the object of a node, as its kubelet does.
    fn add_node(&self, index: usize) {
        let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true",
            "effect": "NoSchedule"});
        let cidr = format!("10.244.{index}.0/24");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node(index)},
            "spec": {"taints": [taint], "podCIDR": cidr, "podCIDRs": [cidr]}});
        self.apply(&node);
    }

    fn node(&self, index: usize) -> &str {
        self.world["nodes"][index]["name"].as_str().unwrap()
    }

    fn service(&self, name: &str, ports: &[u16], annotations: &Value) {
        let port = |port: &u16| json!({"name": format!("p{port}"), "port": port});
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "labels": {"ours": "yes"}, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": ports.iter().map(port).collect::<Vec<_>>()}});
        self.apply(&service);
    }

    /// Waits until a Service has a condition and an event with a sentence, and `corten why` shows it.
    fn until_explained(&self, name: &str, sentence: &str) {
        let until = |what: &str, show: &dyn Fn() -> String| {
            wait::until(&format!("{what} of {name} with {sentence}"), wait::BOUND, || {
                let shown = show();
                if shown.contains(sentence) { Ok(()) } else { Err(shown) }
            });
        };
        let condition = ["get", "service", name, "-o", "jsonpath={.status.conditions[*].message}"];
        until("a condition", &|| self.kubectl(&condition));
        let about = format!("involvedObject.name={name}");
        let events = ["get", "events", "--field-selector", &about, "-o", "jsonpath={.items[*].message}"];
        until("an event", &|| self.kubectl(&events));
        let kubeconfig = self.kubeconfig("admin");
        until("an answer of corten why", &|| {
            let mut why = self.cluster.machine.command(CORTEN.as_ref());
            let output = why.args(["why", "--kubeconfig", &kubeconfig, &format!("service/{name}")]).output().unwrap();
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        });
    }

    /// Waits until the cloud has what is expected; returns its state.
    fn until_cloud(&self, what: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        wait::until(what, wait::BOUND, || {
            let state = self.moto.boto3(STATE);
            if is_expected(&state) { Ok(state) } else { Err(state.to_string()) }
        })
    }
}

/// Starts `corten <arguments>` on the machine of a cluster.
fn process(cluster: &Cluster, log: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(cluster.scratch().join(log)).unwrap();
    let mut command = cluster.machine.command(CORTEN.as_ref());
    command.args(arguments).envs(variables.iter().copied());
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
}

/// Changes a Service or a node, as users do.
fn change(site: &Site, random: &mut Random) {
    let name = format!("s{}", random.below(4));
    match random.below(6) {
        0 | 1 => site.service(&name, &[80], &json!({})),
        2 => site.service(&name, &[80, 443], &json!({})),
        3 => {
            let annotations = json!({"service.beta.kubernetes.io/aws-load-balancer-proxy-protocol": "*",
                "service.beta.kubernetes.io/aws-load-balancer-internal": random.below(2).eq(&0).to_string()});
            site.service(&name, &[443], &annotations);
        }
        4 => drop(site.kubectl(&["delete", "service", &name, "--ignore-not-found", "--wait=false"])),
        _ => match site.kubectl(&["get", "nodes", "-o", "name"]).contains(site.node(NODES - 1)) {
            true => drop(site.kubectl(&["delete", "node", site.node(NODES - 1)])),
            false => site.add_node(NODES - 1),
        },
    }
}

#[test]
fn a_manager_that_is_killed_at_any_moment_leaves_nothing_behind() {
    let Some(site) = Site::start() else { return };
    let before = site.moto.boto3(STATE);
    let mut random = Random::new(number("CLOUD_SEED", 1));
    (0..NODES - 1).for_each(|index| site.add_node(index));
    let mut points = std::collections::BTreeMap::new();
    for _ in 0..number("CLOUD_KILLS", 12) {
        if random.below(2) == 0 {
            change(&site, &mut random);
        }
        site.door.set(Fault::None);
        let manager = site.manager(&[]);
        change(&site, &mut random);
        let last = random.index(60);
        let deadline = Instant::now() + LIFE;
        while site.door.calls() < last && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(manager);
        *points.entry(site.door.calls()).or_insert(0) += 1;
    }
    eprintln!("killed after so many calls, so many times: {points:?}");

    // In the end the cloud has all that the Services request, and nothing else.
    let _manager = site.manager(&[]);
    let present = site.kubectl(&["get", "nodes", "-o", "name"]).lines().count();
    site.until_cloud("the load balancers of the Services", |state| {
        let balancers = state["balancers"].as_object().unwrap();
        let is_whole = |one: &Value| {
            let ports = one["ports"].as_object().unwrap();
            !ports.is_empty() && ports.values().all(|targets| targets.as_array().unwrap().len() == present)
        };
        // A Service that was being deleted is gone in the end.
        let names = site.kubectl(&["get", "services", "-l", "ours", "-o", "jsonpath={.items[*].metadata.name}"]);
        let wanted: Vec<String> = names.split_whitespace().map(|name| format!("default/{name}")).collect();
        balancers.keys().eq(&wanted)
            && balancers.values().all(is_whole)
            && state["routes"].as_array().unwrap().len() == present
    });

    // A node that comes and goes is followed.
    site.service("s0", &[80], &json!({}));
    let name = site.node(NODES - 1);
    site.kubectl(&["delete", "node", name, "--ignore-not-found"]);
    let has = |count: usize| {
        move |state: &Value| {
            state["balancers"]["default/s0"]["ports"]["80"].as_array().is_some_and(|all| all.len() == count)
        }
    };
    site.until_cloud("the targets", has(NODES - 1));
    let begun = Instant::now();
    site.add_node(NODES - 1);
    site.until_cloud("the targets with the new node", has(NODES));
    let added = begun.elapsed();
    let begun = Instant::now();
    site.kubectl(&["delete", "node", name]);
    site.until_cloud("the targets without the node", has(NODES - 1));
    eprintln!("followed, with two runs of Python: a new node in {added:?}, a deleted one in {:?}", begun.elapsed());

    // So is an instance that is stopped, and then terminated.
    let id = site.world["nodes"][0]["id"].as_str().unwrap();
    site.moto.boto3(&format!("ec2.stop_instances(InstanceIds=['{id}'])\nprint('1')"));
    let taints = ["get", "node", site.node(0), "--ignore-not-found", "-o", "jsonpath={.spec.taints[*].key}"];
    wait::until("the taint of a stopped instance", wait::BOUND, || {
        let shown = site.kubectl(&taints);
        if shown.contains("node.cloudprovider.kubernetes.io/shutdown") { Ok(()) } else { Err(shown) }
    });
    let begun = Instant::now();
    site.moto.boto3(&format!("ec2.terminate_instances(InstanceIds=['{id}'])\nprint('1')"));
    let name = ["get", "node", site.node(0), "--ignore-not-found", "-o", "name"];
    wait::until("the node of a terminated instance to go", wait::BOUND, || {
        let shown = site.kubectl(&name);
        if shown.trim().is_empty() { Ok(()) } else { Err(shown) }
    });
    site.until_cloud("the targets without the instance", has(NODES - 2));
    eprintln!("followed: a terminated instance in {:?}", begun.elapsed());

    site.kubectl(&["delete", "services", "-l", "ours"]);
    site.kubectl(&["delete", "nodes", "--all"]);
    let left = site.until_cloud("nothing to be left behind", |state| state["routes"] == json!([]));
    assert_eq!(left, before);
}

#[test]
fn refusals_of_the_cloud_are_sentences_and_objects_of_others_stay() {
    let Some(site) = Site::start() else { return };
    (0..2).for_each(|index| site.add_node(index));
    let manager = site.manager(&[]);
    site.service("good", &[80], &json!({"service.beta.kubernetes.io/aws-load-balancer-who": "knows"}));
    site.until_explained("good", "the annotation service.beta.kubernetes.io/aws-load-balancer-who is not known");
    site.service("wrong", &[80], &json!({"service.beta.kubernetes.io/aws-load-balancer-proxy-protocol": "maybe"}));
    site.until_explained("wrong", "proxy-protocol");
    site.door.set(Fault::Refuse("AuthFailure"));
    site.service("denied", &[80], &json!({}));
    site.until_explained("denied", "the cloud does not accept the credentials: ");
    drop(manager);
    site.door.set(Fault::None);

    // There is no name service behind the machine either.
    let manager = site.manager(&[("AWS_ENDPOINT_URL", ""), ("AWS_REGION", "eu-nowhere-9")]);
    site.service("nowhere", &[80], &json!({}));
    site.until_explained("nowhere", "eu-nowhere-9");
    drop(manager);

    site.service("theirs", &[80], &json!({}));
    let uid = site.kubectl(&["get", "service", "theirs", "-o", "jsonpath={.metadata.uid}"]);
    let name = format!("a{}", uid.replace('-', "")).chars().take(32).collect::<String>();
    site.moto.boto3(&format!(
        "elb.create_load_balancer(Name='{name}', Type='network', Subnets={})\nprint('1')",
        site.world["subnets"]
    ));
    let _manager = site.manager(&[]);
    site.until_explained("theirs", "is not this cluster's: it has no tag kubernetes.io/cluster/c=owned");
    site.until_cloud("the load balancers of the others", |state| {
        ["good", "denied", "nowhere"].iter().all(|one| !state["balancers"][format!("default/{one}")].is_null())
    });
    site.kubectl(&["delete", "services", "-l", "ours"]);
    let left = site.moto.boto3(STATE);
    let kept: Vec<&String> = left["balancers"].as_object().unwrap().keys().collect();
    assert_eq!(kept, [&name]);
    // The rule is the one that was there before.
    assert_eq!((&left["groups"], &left["rules"]), (&json!(0), &json!(1)));
}
