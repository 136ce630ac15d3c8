//! Chains of the reference plugins, of scripts, and of our own plugin, run to the specification in a network namespace.

#![allow(clippy::unwrap_used)]

mod namespaces;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corten_network::cni::{Chain, Config, plugin};
use corten_network::{Attachment, Error, PortMapping, Protocol, SetupRequest, enter};
use namespaces::{Pins, on_node, request};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the directory of the reference plugins; `cargo xtask test` brings them.
fn reference_plugins() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/cni");
    assert!(path.join("bridge").exists(), "{} lacks plugins: run the tests by cargo xtask test", path.display());
    path
}

struct Fixture(Pins);

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture(Pins::new());
        for directory in ["net.d", "bin"] {
            std::fs::create_dir(fixture.0.path().join(directory)).unwrap();
        }
        fixture
    }

    fn configure(&self, list: &Value) {
        std::fs::write(self.0.path().join("net.d/10-test.conflist"), list.to_string()).unwrap();
    }

    fn chain(&self) -> Chain {
        let config = Config {
            configurations: self.0.path().join("net.d"),
            plugins: vec![self.0.path().join("bin"), reference_plugins()],
            state_dir: self.0.path().join("state"),
        };
        Chain::new(config).unwrap()
    }

    fn pod(&self, name: &str, port_mappings: Vec<PortMapping>) -> SetupRequest {
        request(name, &self.0.add(name), port_mappings)
    }

    /// Makes a plugin that records its calls and prints this answer.
    fn script(&self, name: &str, answer: &str) {
        let log = self.0.path().join("log");
        let content = format!(
            "#!/bin/sh\necho \"{name} $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS $(cat)\" >> {}\n{answer}\n",
            log.display()
        );
        let source = self.0.path().join("source");
        let path = self.0.path().join("bin").join(name);
        std::fs::write(&source, content).unwrap();
        // By a program of its own: a process that another test is just starting may inherit a file that this process
        // has open for writing, and the file cannot be run until that process has started.
        let install = std::process::Command::new("install").args(["-m", "755"]).args([&source, &path]).status();
        assert!(install.unwrap().success());
    }

    /// Returns the calls of scripts since the last time.
    fn calls(&self) -> Vec<String> {
        let path = self.0.path().join("log");
        let content = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        content.lines().map(str::to_owned).collect()
    }
}

fn reaches(from: &SetupRequest, to: &SetupRequest, address: IpAddr) -> bool {
    // A port of its own: a plugin that another test is just starting may still hold an earlier listener.
    let listener = enter(&to.netns_path, || TcpListener::bind("[::]:0").unwrap()).unwrap();
    let address = SocketAddr::new(address, listener.local_addr().unwrap().port());
    let found = enter(&from.netns_path, move || TcpStream::connect_timeout(&address, TIMEOUT).is_ok());
    drop(listener);
    found.unwrap()
}

#[test]
fn the_reference_plugins_make_a_network() {
    on_node(|| async {
        let fixture = Fixture::new();
        let data = fixture.0.path().join("ipam");
        fixture.configure(&json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true,
             "ipam": {"type": "host-local", "dataDir": data, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                      "ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "fd00:10::/64"}]]}},
            {"type": "tuning", "sysctl": {"net.ipv4.conf.all.accept_redirects": "0"}},
        ]}));
        let chain = fixture.chain();
        assert_eq!(chain.not_ready().await, None);
        let a = fixture.pod("a", vec![]);
        let b = fixture.pod("b", vec![]);
        let Attachment { ips: at_a, .. } = chain.setup(a.clone()).await.unwrap();
        let Attachment { ips: at_b, gateways, .. } = chain.setup(b.clone()).await.unwrap();
        assert_eq!(at_a, ["10.10.0.2".parse::<IpAddr>().unwrap(), "fd00:10::2".parse().unwrap()]);
        assert_eq!(gateways.len(), 2);
        assert!(reaches(&a, &b, at_b[0]));

        chain.check("a").await.unwrap();
        // The pod's link is deleted: a check fails, and the removal succeeds all the same.
        enter(&a.netns_path, || {
            let ended = std::process::Command::new("ip").args(["link", "delete", "eth0"]).status().unwrap();
            assert!(ended.success());
        })
        .unwrap();
        assert!(matches!(chain.check("a").await, Err(Error::Cni(_))));
        // A sandbox that died in a crash is collected, by the configuration that it was made with.
        fixture.configure(&json!({"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "missing"}]}));
        let chain = fixture.chain();
        assert_eq!(chain.gc(&BTreeSet::from(["b".to_owned()])).await.unwrap(), 1);
        assert!(!data.join("pods/10.10.0.2").exists() && data.join("pods/10.10.0.3").exists());
        chain.teardown("b").await.unwrap();
        chain.teardown("b").await.unwrap();
        assert!(!data.join("pods/10.10.0.3").exists());
        assert!(chain.setup(a).await.unwrap_err().to_string().contains("missing"));
    });
}

#[test]
fn plugins_are_called_to_the_specification() {
    on_node(|| async {
        let fixture = Fixture::new();
        let result = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24"}]}"#;
        fixture.script("first", &format!("[ $CNI_COMMAND = ADD ] && echo '{result}' || true"));
        fixture.script("second", &format!("[ $CNI_COMMAND = ADD ] && echo '{result}' || true"));
        let plugins = json!([{"type": "first"}, {"type": "second", "capabilities": {"portMappings": true}}]);
        fixture.configure(&json!({"cniVersion": "1.1.0", "name": "n", "plugins": plugins}));
        let chain = fixture.chain();
        assert_eq!(chain.not_ready().await, None);
        assert_eq!(fixture.calls().len(), 2, "STATUS of both");

        let ports = vec![PortMapping { protocol: Protocol::Udp, host_ip: None, host_port: 53, container_port: 5353 }];
        let added = chain.setup(fixture.pod("p", ports)).await.unwrap();
        assert_eq!(added.ips, ["10.1.0.9".parse::<IpAddr>().unwrap()]);
        let calls = fixture.calls();
        assert!(calls[0].starts_with("first ADD p eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;"));
        assert!(!calls[0].contains("prevResult") && !calls[0].contains("runtimeConfig"), "{}", calls[0]);
        assert!(calls[1].contains("prevResult") && calls[1].contains("\"hostPort\":53"), "{}", calls[1]);
        assert!(calls[1].contains("\"protocol\":\"udp\"") && !calls[1].contains("capabilities"), "{}", calls[1]);

        chain.check("p").await.unwrap();
        chain.gc(&BTreeSet::from(["p".to_owned()])).await.unwrap();
        chain.teardown("p").await.unwrap();
        let calls = fixture.calls();
        let words: Vec<String> =
            calls.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(words, ["first CHECK", "second CHECK", "first GC", "second GC", "second DEL", "first DEL"]);
        assert!(calls[2].contains("cni.dev/valid-attachments") && calls[4].contains("prevResult"));
    });
}

#[test]
fn the_error_of_a_plugin_is_reported_and_the_setup_is_undone() {
    on_node(|| async {
        let fixture = Fixture::new();
        fixture.script("first", r#"[ $CNI_COMMAND = ADD ] && echo '{"ips":[]}' || true"#);
        fixture.script(
            "second",
            r#"[ $CNI_COMMAND = DEL ] && exit 0; echo '{"code":11,"msg":"no cable","details":"at all"}'; exit 1"#,
        );
        fixture.configure(
            &json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "first"}, {"type": "second"}]}),
        );
        let chain = fixture.chain();
        assert!(chain.not_ready().await.unwrap().contains("no cable: at all"));
        fixture.calls();
        let refused = chain.setup(fixture.pod("p", vec![])).await.unwrap_err();
        assert!(refused.to_string().contains("no cable: at all"), "{refused}");
        let words: Vec<String> =
            fixture.calls().iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(words, ["first ADD", "second ADD", "second DEL", "first DEL"]);
        std::fs::remove_file(fixture.0.path().join("net.d/10-test.conflist")).unwrap();
        assert!(chain.not_ready().await.unwrap().contains("no network configuration"));
    });
}

#[test]
fn our_network_is_a_plugin() {
    on_node(|| async {
        let fixture = Fixture::new();
        let a = fixture.pod("a", vec![]);
        let b = fixture.pod("b", vec![]);
        let call = async |command: &str, request: &SetupRequest, more: Value| -> Result<Value, Value> {
            let mut config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "corten-cni",
                "dataDir": fixture.0.path().join("plugin"), "ranges": ["10.20.0.0/24", "fd00:20::/64"]});
            config.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            let variable = |name: &str| match name {
                "CNI_COMMAND" => Some(command.to_owned()),
                "CNI_CONTAINERID" => Some(request.sandbox_id.clone()),
                "CNI_NETNS" => Some(request.netns_path.to_string_lossy().into_owned()),
                "CNI_IFNAME" => Some("eth0".to_owned()),
                _ => None,
            };
            let (printed, succeeded) = plugin::call(variable, config.to_string().as_bytes()).await;
            let value = serde_json::from_str(&printed).unwrap_or_default();
            if succeeded { Ok(value) } else { Err(value) }
        };
        let versions = call("VERSION", &a, json!({})).await.unwrap();
        assert!(versions["supportedVersions"].as_array().unwrap().contains(&json!("1.1.0")));
        call("STATUS", &a, json!({})).await.unwrap();
        let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80}]}});
        call("ADD", &a, json!({})).await.unwrap();
        let result = call("ADD", &b, ports).await.unwrap();
        assert_eq!(result["ips"][1]["address"], "fd00:20::3/128");
        assert_eq!(result["interfaces"][2]["sandbox"], json!(b.netns_path));
        assert!(reaches(&a, &b, "10.20.0.3".parse().unwrap()) && reaches(&a, &b, "fd00:20::3".parse().unwrap()));

        call("CHECK", &b, json!({"prevResult": result})).await.unwrap();
        assert_eq!(call("CHECK", &b, json!({"prevResult": {"ips": []}})).await.unwrap_err()["code"], 999);
        call("GC", &a, json!({"cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth0"}]})).await.unwrap();
        assert_eq!(call("CHECK", &a, json!({})).await.unwrap_err()["code"], 3);
        for _ in 0..2 {
            call("DEL", &b, json!({})).await.unwrap();
        }
        assert_eq!(call("ADD", &a, json!({"ranges": []})).await.unwrap_err()["code"], 7);
        assert_eq!(call("ADD", &a, json!({"cniVersion": "9.0.0"})).await.unwrap_err()["code"], 1);
    });
}
