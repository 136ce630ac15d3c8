//! The target groups and listeners that a Service wants: pure functions of the load balancer and its options.

use corten_outbound::sign::sha256;

use super::options::{Options, Pair};
use crate::provider::{Balancer, BalancerPort, Error};

/// The port of kube-proxy's health check on every node, which tells of a node that serves no UDP.
const PROXY_HEALTH_PORT: &str = "10256";

/// A target group. Its name changes with all that AWS cannot change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub protocol: &'static str,
    pub node_port: u16,
    pub target_type: &'static str,
    pub health: Health,
    pub attributes: Vec<Pair>,
}

/// The health check of a target group, with the names of AWS's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub parameters: Vec<Pair>,
}

/// A listener, which forwards to a target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub port: u16,
    pub protocol: &'static str,
    /// The name of the target group.
    pub group: String,
    pub certificates: Vec<String>,
    pub tls_policy: Option<String>,
    pub alpn_policy: Option<String>,
}

/// The listeners and target groups of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub groups: Vec<Group>,
    pub listeners: Vec<Listener>,
}

/// Returns the begin of the names of a load balancer's target groups.
pub fn group_prefix(cluster: &str, balancer: &str) -> String {
    let hash = sha256(format!("{cluster}/{balancer}").as_bytes());
    format!("k8s-{}-", &hash[..12])
}

/// Returns the target groups and listeners of a load balancer in a VPC.
pub fn wanted(balancer: &Balancer, options: &Options, cluster: &str, vpc: &str) -> Result<Wanted, Error> {
    let mut wanted = Wanted { groups: Vec::new(), listeners: Vec::new() };
    for port in merged(&balancer.ports)? {
        let is_tls = port.protocol == "TCP" && has_tls(&port, options);
        let protocol = if is_tls { "TLS" } else { port.protocol };
        let target_protocol = match (is_tls, options.has_tls_targets) {
            (true, true) => "TLS",
            (true, false) => "TCP",
            (false, _) => protocol,
        };
        let target_type = target_type(options);
        let fixed = format!("{}/{}/{target_protocol}/{}/{target_type}/{vpc}", port.port, port.protocol, port.node_port);
        let name = format!("{}{}", group_prefix(cluster, &balancer.name), &sha256(fixed.as_bytes())[..10]);
        wanted.listeners.push(Listener {
            port: port.port,
            protocol,
            group: name.clone(),
            certificates: if is_tls { options.certificates.clone() } else { Vec::new() },
            tls_policy: options.tls_policy.clone().filter(|_| is_tls),
            alpn_policy: options.alpn_policy.clone().filter(|_| is_tls),
        });
        wanted.groups.push(Group {
            name,
            protocol: target_protocol,
            node_port: port.node_port,
            target_type,
            health: health(balancer, options, target_protocol),
            attributes: attributes(options),
        });
    }
    Ok(wanted)
}

/// Returns the type of the targets: addresses of nodes, or instances.
pub fn target_type(options: &Options) -> &'static str {
    if options.targets_addresses { "ip" } else { "instance" }
}

/// A port of the load balancer, with AWS's protocol.
struct Port {
    port: u16,
    node_port: u16,
    name: String,
    protocol: &'static str,
}

/// Returns the ports; TCP and UDP at the same port become one listener.
fn merged(ports: &[BalancerPort]) -> Result<Vec<Port>, Error> {
    let mut merged: Vec<Port> = Vec::new();
    for port in ports {
        let protocol = match port.protocol.as_str() {
            "TCP" => "TCP",
            "UDP" => "UDP",
            other => return Err(Error::Invalid(format!("AWS has no load balancers for {other}"))),
        };
        match merged.iter_mut().find(|one| one.port == port.port) {
            None => merged.push(Port { port: port.port, node_port: port.node_port, name: port.name.clone(), protocol }),
            Some(same) if same.node_port == port.node_port && same.protocol != protocol => same.protocol = "TCP_UDP",
            Some(_) => {
                let port = port.port;
                let sentence = format!("the port {port} needs one node port for TCP and UDP at AWS, and has two");
                return Err(Error::Invalid(sentence));
            }
        }
    }
    Ok(merged)
}

fn has_tls(port: &Port, options: &Options) -> bool {
    let is_named = |wanted: &String| *wanted == port.name || *wanted == port.port.to_string();
    !options.certificates.is_empty() && (options.tls_ports.is_empty() || options.tls_ports.iter().any(is_named))
}

/// Returns the health check: the annotations', else the Service's own for local traffic, else the node port itself.
fn health(balancer: &Balancer, options: &Options, protocol: &str) -> Health {
    let given = &options.health;
    let usual = match (balancer.health_check_port, protocol) {
        (Some(port), _) => Some(port.to_string()),
        (None, "UDP") => Some(PROXY_HEALTH_PORT.to_owned()),
        _ => None,
    };
    let is_http = usual.is_some() && given.port.is_none();
    let check = given.protocol.clone().unwrap_or_else(|| if is_http { "HTTP" } else { "TCP" }.to_owned());
    let port = given.port.clone().or(usual).unwrap_or_else(|| "traffic-port".to_owned());
    let mut parameters = Vec::new();
    let mut add = |key: &str, value: String| parameters.push(Pair { key: key.to_owned(), value });
    add("HealthCheckProtocol", check.clone());
    add("HealthCheckPort", port);
    if check != "TCP" {
        let usual = if is_http { "/healthz" } else { "/" };
        add("HealthCheckPath", given.path.clone().unwrap_or_else(|| usual.to_owned()));
        if let Some(codes) = &given.success_codes {
            add("Matcher.HttpCode", codes.clone());
        }
    }
    add("HealthCheckIntervalSeconds", given.interval.unwrap_or(10).to_string());
    if let Some(timeout) = given.timeout {
        add("HealthCheckTimeoutSeconds", timeout.to_string());
    }
    add("HealthyThresholdCount", given.healthy_threshold.unwrap_or(3).to_string());
    add("UnhealthyThresholdCount", given.unhealthy_threshold.unwrap_or(3).to_string());
    Health { parameters }
}

/// The attribute of target groups whose packets begin with the PROXY protocol.
const PROXY_PROTOCOL: &str = "proxy_protocol_v2.enabled";

/// Returns the attributes of a target group that no call has set.
pub fn default_attributes() -> [Pair; 1] {
    [Pair { key: PROXY_PROTOCOL.to_owned(), value: "false".to_owned() }]
}

fn attributes(options: &Options) -> Vec<Pair> {
    let own = Pair { key: PROXY_PROTOCOL.to_owned(), value: options.has_proxy_protocol.to_string() };
    let given = options.target_attributes.iter().filter(|pair| pair.key != own.key).cloned();
    std::iter::once(own.clone()).chain(given).collect()
}

#[cfg(test)]
mod tests {
    use corten_meta::Key;

    use super::*;

    fn balancer(ports: &[(&str, u16, u16)]) -> Balancer {
        let port = |(protocol, port, node_port): &(&str, u16, u16)| BalancerPort {
            name: String::new(),
            protocol: (*protocol).to_owned(),
            port: *port,
            node_port: *node_port,
        };
        Balancer {
            name: "a1".to_owned(),
            service: Key::new("default", "web"),
            ports: ports.iter().map(port).collect(),
            nodes: Vec::new(),
            source_ranges: Vec::new(),
            health_check_port: None,
            requested_address: None,
            annotations: Vec::new(),
        }
    }

    #[test]
    fn a_changed_node_port_is_another_group_and_the_same_listener() {
        let options = Options::default();
        let before = wanted(&balancer(&[("TCP", 80, 30080)]), &options, "c", "vpc-1").unwrap();
        let after = wanted(&balancer(&[("TCP", 80, 30081)]), &options, "c", "vpc-1").unwrap();
        assert_ne!(before.groups[0].name, after.groups[0].name);
        assert_eq!(before.listeners[0].port, after.listeners[0].port);
        assert!(before.groups[0].name.len() <= 32);
        assert!(before.groups[0].name.starts_with(&group_prefix("c", "a1")));
        assert_ne!(group_prefix("c", "a1"), group_prefix("d", "a1"));
    }

    #[test]
    fn tcp_and_udp_share_a_listener_if_they_share_a_node_port() {
        let options = Options::default();
        let both = wanted(&balancer(&[("TCP", 53, 30053), ("UDP", 53, 30053)]), &options, "c", "v").unwrap();
        assert_eq!((both.listeners.len(), both.listeners[0].protocol), (1, "TCP_UDP"));
        let error = wanted(&balancer(&[("TCP", 53, 1), ("UDP", 53, 2)]), &options, "c", "v").unwrap_err();
        assert_eq!(error.to_string(), "the port 53 needs one node port for TCP and UDP at AWS, and has two");
        assert!(wanted(&balancer(&[("SCTP", 53, 1)]), &options, "c", "v").is_err());
    }

    #[test]
    fn certificates_make_tls_listeners_at_their_ports() {
        let mut options = Options { certificates: vec!["arn:c".to_owned()], ..Options::default() };
        options.tls_ports = vec!["443".to_owned()];
        let found = wanted(&balancer(&[("TCP", 80, 1), ("TCP", 443, 2)]), &options, "c", "v").unwrap();
        let protocols: Vec<&str> = found.listeners.iter().map(|one| one.protocol).collect();
        assert_eq!(protocols, ["TCP", "TLS"]);
        assert_eq!(found.groups[1].protocol, "TCP");
        options.has_tls_targets = true;
        let found = wanted(&balancer(&[("TCP", 443, 2)]), &options, "c", "v").unwrap();
        assert_eq!(found.groups[0].protocol, "TLS");
    }
}
