//! Services in front of real servers in pods' namespaces, on a node that is a network namespace.

#![allow(clippy::unwrap_used)]

mod node;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use corten_nftables::{Family, Socket, Table};
use corten_proxy::Mode;
use node::{Node, TIMEOUT, on_node, slice, slice6};

/// Returns a Service `web` with these fields of its spec.
fn web(spec: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"web","namespace":"default"}},
            "spec":{{"clusterIP":"10.96.0.1","ports":[{{"name":"p","port":80}}]{spec}}}}}"#
    )
}

fn node_port(spec: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"web","namespace":"default"}},
            "spec":{{"type":"NodePort","clusterIP":"10.96.0.1",
                     "ports":[{{"name":"p","port":80,"nodePort":30080}}]{spec}}}}}"#
    )
}

const CLUSTER_IP: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 1), 80);

#[test]
fn a_cluster_ip_reaches_every_endpoint_also_the_client_itself() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b"]).await;
        node.service(&web(""));
        node.slice("web-1", &slice("web", "TCP", 8080, &[("a", &node), ("b", &node)]));
        node.sync();
        node.serve_tcp("a", 8080);
        node.serve_tcp("b", 8080);
        for bridge_filter in ["1", "0"] {
            let _ = std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", bridge_filter);
            let answers: BTreeSet<String> =
                (0..40).map(|_| node.ask_tcp(Some("a"), CLUSTER_IP.into()).unwrap()).collect();
            // To b with its own address; to itself masqueraded, else it would answer itself directly.
            let expected = [format!("a sees {}", node.gateway()), format!("b sees {}", node.address("a"))];
            assert_eq!(answers, BTreeSet::from(expected));
        }
        // From the node, which is no pod: masqueraded.
        let answer = node.ask_tcp(None, CLUSTER_IP.into()).unwrap();
        assert!(answer.ends_with(&format!("sees {}", node.gateway())), "{answer}");
    });
}

/// The fence has every cluster address and every ServiceCIDR, in each mode, and is restored when it is deleted.
#[test]
fn the_fence_follows_services_and_service_cidrs() {
    for mode in [Mode::Nftables, Mode::Iptables] {
        on_node(move || async move {
            let mut node = Node::start_in(mode, &["a"]).await;
            let fence = Table::new(Family::Ipv4, "corten-fence");
            let count = |set: &str| Socket::open().unwrap().elements(&fence, set).map_or(0, |found| found.len());
            assert_eq!(count("cluster-ips") + count("ranges"), 0);
            node.service(&web(""));
            node.service_cidr("more", Some(([10, 96, 0, 0], 16)));
            node.sync();
            let ranges = count("ranges");
            assert_eq!((count("cluster-ips"), ranges > 0), (1, true));
            node.service_cidr("part", Some(([10, 96, 7, 0], 24)));
            node.sync();
            assert_eq!(count("ranges"), ranges, "a range within another");
            let refused = node.refusal_of_tcp(Some("a"), SocketAddr::from(([10, 96, 0, 1], 81)));
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{mode:?}");
            let mut batch = corten_nftables::Batch::new();
            batch.destroy_table(&fence);
            Socket::open().unwrap().apply(batch).unwrap();
            node.check();
            node.sync();
            assert_eq!((count("cluster-ips"), count("ranges")), (1, ranges));
            node.delete_service("web");
            node.service_cidr("more", None);
            node.service_cidr("part", None);
            node.sync();
            assert_eq!(count("cluster-ips") + count("ranges"), 0);
        });
    }
}

/// A Service of both families: everything that one of IPv4 alone can do, by IPv6.
#[test]
fn ipv6_has_cluster_addresses_node_ports_affinity_ranges_and_refusals() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b", "c"]).await;
        let service = |spec: &str| {
            format!(
                r#"{{"metadata":{{"name":"web","namespace":"default"}},
                    "spec":{{"type":"LoadBalancer","clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1","fd00:96::1"],
                             "externalIPs":["2001:db8::7"],"loadBalancerSourceRanges":["2001:db8:1::/48"],
                             "ports":[{{"name":"p","port":80,"nodePort":30080}}]{spec}}},
                    "status":{{"loadBalancer":{{"ingress":[{{"ip":"2001:db8::8"}}]}}}}}}"#
            )
        };
        let to = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port);
        node.service(&service(""));
        node.sync();
        let refused = node.refusal_of_tcp(Some("a"), to("fd00:96::1", 80));
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

        node.slice("web-1", &slice("web", "TCP", 8080, &[("a", &node), ("b", &node)]));
        node.slice("web-2", &slice6("web", "TCP", 8080, &[("a", &node), ("b", &node)]));
        node.sync();
        node.serve_tcp("a", 8080);
        node.serve_tcp("b", 8080);
        let gateway = node.gateway6();
        for bridge_filter in ["1", "0"] {
            let _ = std::fs::write("/proc/sys/net/bridge/bridge-nf-call-ip6tables", bridge_filter);
            let ask = |_| node.ask_tcp(Some("a"), to("fd00:96::1", 80)).unwrap();
            let answers: BTreeSet<String> = (0..40).map(ask).collect();
            assert_eq!(
                answers,
                BTreeSet::from([format!("a sees {gateway}"), format!("b sees {}", node.address6("a"))])
            );
        }
        assert!(node.ask_tcp(Some("a"), CLUSTER_IP.into()).is_ok(), "IPv4 beside it");
        for (from, address) in [
            (Some("c"), to("2001:db8::7", 80)),
            (Some("c"), SocketAddr::new(gateway, 30080)),
            (None, SocketAddr::new(gateway, 30080)),
        ] {
            let answer = node.ask_tcp(from, address).unwrap_or_else(|error| panic!("{from:?} to {address}: {error}"));
            assert!(answer.ends_with(&format!("sees {gateway}")), "{answer}");
        }
        let silent = node.refusal_of_tcp(Some("c"), to("2001:db8::8", 80));
        assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut, "not of the source range");

        node.service(&service(r#","sessionAffinity":"ClientIP""#));
        node.sync();
        let ask = |_| node.ask_tcp(Some("c"), to("fd00:96::1", 80)).unwrap();
        let answers: BTreeSet<String> = (0..20).map(ask).collect();
        assert_eq!(answers.len(), 1, "{answers:?}");
    });
}

#[test]
fn a_udp_flow_of_ipv6_moves_on_when_its_endpoint_is_deleted() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b", "c"]).await;
        node.service(
            r#"{"metadata":{"name":"dns","namespace":"default"},
                "spec":{"clusterIP":"fd00:96::2","ports":[{"name":"p","protocol":"UDP","port":53}]}}"#,
        );
        node.slice("dns-1", &slice6("dns", "UDP", 5353, &[("a", &node)]));
        node.sync();
        node.serve_udp("a", 5353);
        node.serve_udp("b", 5353);
        let client = node.enter(Some("c"), || UdpSocket::bind("[::]:0").unwrap());
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.connect("[fd00:96::2]:53").unwrap();
        let ask = || {
            client.send(b"?").unwrap();
            let mut buffer = [0; 64];
            let length = client.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        assert!(ask().starts_with("a sees"));
        node.slice("dns-1", &slice6("dns", "UDP", 5353, &[("b", &node)]));
        node.sync();
        assert!(ask().starts_with("b sees"));
    });
}

#[test]
fn without_endpoints_tcp_and_udp_are_refused_at_once() {
    on_node(|| async {
        let mut node = Node::start(&["a"]).await;
        node.service(&web(r#","type":"ClusterIP""#));
        node.service(
            r#"{"metadata":{"name":"dns","namespace":"default"},
                "spec":{"clusterIP":"10.96.0.2","ports":[{"name":"p","protocol":"UDP","port":53}]}}"#,
        );
        node.sync();
        for from in [Some("a"), None] {
            let error = node.refusal_of_tcp(from, CLUSTER_IP.into());
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{from:?}");
            let error = node.ask_udp(from, (Ipv4Addr::new(10, 96, 0, 2), 53).into()).unwrap_err();
            // A process of the node learns it from the system call that sends.
            let expected = match from {
                Some(_) => std::io::ErrorKind::ConnectionRefused,
                None => std::io::ErrorKind::PermissionDenied,
            };
            assert_eq!(error.kind(), expected, "{from:?}");
        }
    });
}

#[test]
fn a_node_port_works_from_pods_from_the_node_and_on_localhost() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b"]).await;
        node.service(&node_port(""));
        node.slice("web-1", &slice("web", "TCP", 8080, &[("b", &node)]));
        node.sync();
        node.serve_tcp("b", 8080);
        let gateway = node.gateway();
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        for (from, to) in [(Some("a"), gateway), (Some("b"), gateway), (None, gateway), (None, localhost)] {
            let answer = node.ask_tcp(from, (to, 30080).into());
            let answer = answer.unwrap_or_else(|error| panic!("{from:?} to {to}: {error}"));
            assert_eq!(answer, format!("b sees {gateway}"), "{from:?} to {to}");
        }
        // Port 30080 of an address that is not the node's leads nowhere.
        node.refusal_of_tcp(Some("a"), (node.address("b"), 30080).into());
    });
}

#[test]
fn local_traffic_keeps_the_clients_address_and_is_dropped_where_no_endpoint_is() {
    on_node(|| async {
        let mut node = Node::start(&["a", "outside"]).await;
        // The pod `outside` acts as a client of another network: it is not of the cluster's range.
        node.narrow_cluster_to("a");
        node.service(&node_port(r#","externalTrafficPolicy":"Local""#));
        node.slice("web-1", &slice("web", "TCP", 8080, &[("a", &node)]));
        node.sync();
        node.serve_tcp("a", 8080);
        let to = (node.gateway(), 30080).into();
        assert_eq!(node.ask_tcp(Some("outside"), to).unwrap(), format!("a sees {}", node.address("outside")));

        // With its only endpoint on another node, clients outside get no answer; the node itself is served.
        node.slice("web-1", &slice("web", "TCP", 8080, &[("a", &node)]).replace("\"self\"", "\"other\""));
        node.sync();
        let error = node.refusal_of_tcp(Some("outside"), to);
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(node.ask_tcp(None, to).unwrap(), format!("a sees {}", node.gateway()));
        assert!(node.ask_tcp(Some("outside"), CLUSTER_IP.into()).is_ok());
    });
}

#[test]
fn clients_stay_with_their_endpoint_until_it_is_deleted() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b", "c"]).await;
        node.service(&web(
            r#","sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":600}}"#,
        ));
        let both = slice("web", "TCP", 8080, &[("a", &node), ("b", &node)]);
        node.slice("web-1", &both);
        node.sync();
        node.serve_tcp("a", 8080);
        node.serve_tcp("b", 8080);
        let answers: BTreeSet<String> = (0..20).map(|_| node.ask_tcp(Some("c"), CLUSTER_IP.into()).unwrap()).collect();
        assert_eq!(answers.len(), 1, "{answers:?}");

        let first = answers.first().unwrap().chars().next().unwrap().to_string();
        let other = if first == "a" { "b" } else { "a" };
        node.slice("web-1", &slice("web", "TCP", 8080, &[(other, &node)]));
        node.sync();
        assert!(node.ask_tcp(Some("c"), CLUSTER_IP.into()).unwrap().starts_with(other));
        // It stays with the new one when the old one comes back.
        node.slice("web-1", &both);
        node.sync();
        for _ in 0..20 {
            assert!(node.ask_tcp(Some("c"), CLUSTER_IP.into()).unwrap().starts_with(other));
        }
    });
}

#[test]
fn a_udp_flow_moves_on_when_its_endpoint_is_deleted() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b", "c"]).await;
        node.service(
            r#"{"metadata":{"name":"dns","namespace":"default"},
                "spec":{"clusterIP":"10.96.0.2","ports":[{"name":"p","protocol":"UDP","port":53}]}}"#,
        );
        node.slice("dns-1", &slice("dns", "UDP", 5353, &[("a", &node)]));
        node.sync();
        node.serve_udp("a", 5353);
        node.serve_udp("b", 5353);
        // One socket, so one flow.
        let client = node.enter(Some("c"), || UdpSocket::bind("0.0.0.0:0").unwrap());
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.connect((Ipv4Addr::new(10, 96, 0, 2), 53)).unwrap();
        let ask = || {
            client.send(b"?").unwrap();
            let mut buffer = [0; 64];
            let length = client.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        assert!(ask().starts_with("a sees"));
        node.slice("dns-1", &slice("dns", "UDP", 5353, &[("b", &node)]));
        node.sync();
        assert!(ask().starts_with("b sees"));
    });
}

/// A server at the pods' gateway, behind a Service, as the cluster's DNS is.
#[test]
fn a_server_of_the_node_itself_can_be_an_endpoint() {
    on_node(|| async {
        let mut node = Node::start(&["a"]).await;
        node.service(
            r#"{"metadata":{"name":"dns","namespace":"default"},
                "spec":{"clusterIP":"10.96.0.2","internalTrafficPolicy":"Local",
                        "ports":[{"name":"p","protocol":"UDP","port":53},{"name":"q","protocol":"TCP","port":53}]}}"#,
        );
        let gateway = node.gateway();
        node.slice(
            "dns-1",
            &format!(
                r#"{{"metadata":{{"labels":{{"kubernetes.io/service-name":"dns"}},"namespace":"default"}},
                    "addressType":"IPv4","ports":[{{"name":"p","protocol":"UDP","port":5353}}],
                    "endpoints":[{{"addresses":["{gateway}"],"nodeName":"self"}},
                                 {{"addresses":["10.244.9.1"],"nodeName":"other"}}]}}"#
            ),
        );
        node.sync();
        let server = UdpSocket::bind((gateway, 5353)).unwrap();
        std::thread::spawn(move || {
            while let Ok((_, peer)) = server.recv_from(&mut [0; 64]) {
                let _ = server.send_to(peer.ip().to_string().as_bytes(), peer);
            }
        });
        let service = (Ipv4Addr::new(10, 96, 0, 2), 53).into();
        for _ in 0..8 {
            assert_eq!(node.ask_udp(Some("a"), service).unwrap(), node.address("a").to_string());
            node.ask_udp(None, service).unwrap();
        }
        // The other port has no endpoints at all.
        let refused = node.refusal_of_tcp(Some("a"), service);
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn external_addresses_and_source_ranges() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b"]).await;
        let service = |ranges: &str| {
            format!(
                r#"{{"metadata":{{"name":"web","namespace":"default"}},
                    "spec":{{"type":"LoadBalancer","clusterIP":"10.96.0.1","externalIPs":["192.0.2.7"],
                             "loadBalancerSourceRanges":[{ranges}],"ports":[{{"name":"p","port":80}}]}},
                    "status":{{"loadBalancer":{{"ingress":[{{"ip":"192.0.2.8"}}]}}}}}}"#
            )
        };
        node.service(&service(r#""10.244.0.0/16""#));
        node.slice("web-1", &slice("web", "TCP", 8080, &[("b", &node)]));
        node.sync();
        node.serve_tcp("b", 8080);
        for last in [7, 8] {
            let answer = node.ask_tcp(Some("a"), (Ipv4Addr::new(192, 0, 2, last), 80).into()).unwrap();
            assert_eq!(answer, format!("b sees {}", node.gateway()));
        }
        node.service(&service(r#""198.51.100.0/24""#));
        node.sync();
        let refused = node.refusal_of_tcp(Some("a"), (Ipv4Addr::new(192, 0, 2, 8), 80).into());
        assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut);
        node.ask_tcp(Some("a"), (Ipv4Addr::new(192, 0, 2, 7), 80).into()).unwrap();
    });
}

/// The same Services by the programs of iptables.
#[test]
fn iptables_serves_both_versions_of_ip_and_leaves_nothing_behind() {
    on_node(|| async {
        let mut node = Node::start_in(Mode::Iptables, &["a", "b", "c"]).await;
        let service = |spec: &str| {
            format!(
                r#"{{"metadata":{{"name":"web","namespace":"default"}},
                    "spec":{{"type":"LoadBalancer","clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1","fd00:96::1"],
                             "externalIPs":["192.0.2.7","2001:db8::7"],"loadBalancerSourceRanges":["198.51.100.0/24"],
                             "ports":[{{"name":"p","port":80,"nodePort":30080}}]{spec}}},
                    "status":{{"loadBalancer":{{"ingress":[{{"ip":"192.0.2.8"}}]}}}}}}"#
            )
        };
        let to = |ip: &str, port: u16| SocketAddr::new(ip.parse().unwrap(), port);
        node.service(&service(""));
        node.sync();
        for ip in ["10.96.0.1", "192.0.2.7"] {
            let refused = node.refusal_of_tcp(Some("c"), to(ip, 80));
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{ip}");
        }
        node.slice("web-1", &slice("web", "TCP", 8080, &[("a", &node), ("b", &node)]));
        node.slice("web-2", &slice6("web", "TCP", 8080, &[("a", &node), ("b", &node)]));
        node.sync();
        node.serve_tcp("a", 8080);
        node.serve_tcp("b", 8080);
        let gateway = node.gateway();
        let gateway6 = node.gateway6();
        for (ip, own, node_ip) in
            [("10.96.0.1", node.address("a"), gateway), ("fd00:96::1", node.address6("a"), gateway6)]
        {
            let ask = |_| node.ask_tcp(Some("a"), to(ip, 80)).unwrap();
            let answers: BTreeSet<String> = (0..40).map(ask).collect();
            assert_eq!(answers, BTreeSet::from([format!("a sees {node_ip}"), format!("b sees {own}")]));
        }
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        for (from, address) in [(Some("c"), gateway), (None, gateway), (None, localhost), (Some("c"), gateway6)] {
            let answer = node.ask_tcp(from, (address, 30080).into());
            assert!(answer.is_ok(), "{from:?} to the node port at {address}: {answer:?}");
        }
        assert!(node.ask_tcp(Some("c"), to("192.0.2.7", 80)).is_ok());
        let silent = node.refusal_of_tcp(Some("c"), to("192.0.2.8", 80));
        assert_eq!(silent.kind(), std::io::ErrorKind::TimedOut, "not of the source range");

        node.service(&service(r#","sessionAffinity":"ClientIP""#));
        node.sync();
        let ask = |_| node.ask_tcp(Some("c"), to("10.96.0.1", 80)).unwrap();
        let answers: BTreeSet<String> = (0..20).map(ask).collect();
        assert_eq!(answers.len(), 1, "{answers:?}");

        // A second proxy finds the rules of the first, and deletes unwanted ones.
        node.delete_service("web");
        node.restart_proxy();
        node.sync();
        node.refusal_of_tcp(Some("c"), (gateway, 30080).into());
        corten_proxy::cleanup(node.config()).unwrap();
        let program = node.config().iptables.clone().unwrap().join("iptables-save");
        let saved = std::process::Command::new(program).output().unwrap().stdout;
        let saved = String::from_utf8_lossy(&saved).into_owned();
        assert!(!saved.contains("CORTEN"), "{saved}");
    });
}

#[test]
fn a_change_costs_the_same_among_many_services_and_everything_can_be_deleted() {
    on_node(|| async {
        let mut node = Node::start(&["a"]).await;
        let service = |n: u32| {
            let ip = Ipv4Addr::from(0x0a60_0100 + n);
            format!(
                r#"{{"metadata":{{"name":"s{n}","namespace":"default"}},
                    "spec":{{"clusterIP":"{ip}","ports":[{{"name":"p","port":80}}]}}}}"#
            )
        };
        let add = |node: &mut Node, n: u32| {
            node.service(&service(n));
            let slice = slice(&format!("s{n}"), "TCP", 8080, &[("a", node)]);
            node.slice(&format!("s{n}-1"), &slice);
        };
        add(&mut node, 0);
        assert!(node.sync().replaced);
        add(&mut node, 1);
        let among_few = node.sync();
        for n in 2..3000 {
            add(&mut node, n);
        }
        node.sync();
        add(&mut node, 3000);
        let among_many = node.sync();
        assert_eq!((among_many.bytes, among_many.services, among_many.replaced), (among_few.bytes, 1, false));

        for n in 0..=3000 {
            node.delete_service(&format!("s{n}"));
            node.delete_slice(&format!("s{n}-1"));
        }
        node.sync();
        let table = Table::new(Family::Ipv4, "corten-proxy");
        let mut socket = Socket::open().unwrap();
        for set in ["services", "endpoints", "hairpin", "shapes"] {
            assert!(socket.elements(&table, set).unwrap().is_empty(), "{set}");
        }
        let chains: Vec<_> = socket.chains(&table).unwrap().into_iter().map(|chain| chain.name).collect();
        assert!(!chains.iter().any(|chain| chain.contains("pick")), "{chains:?}");
    });
}

#[test]
fn leftovers_are_replaced_and_a_flushed_table_is_restored() {
    on_node(|| async {
        let mut node = Node::start(&["a", "b"]).await;
        node.service(&web(""));
        node.slice("web-1", &slice("web", "TCP", 8080, &[("b", &node)]));
        node.sync();
        // A second proxy finds the rules of the first.
        node.restart_proxy();
        assert!(node.sync().replaced);
        // Another program flushes the ruleset; the next change notices.
        Socket::open().unwrap().delete_tables("corten-proxy").unwrap();
        node.slice("web-1", &slice("web", "TCP", 8081, &[("b", &node)]));
        assert!(node.sync().replaced);
        node.serve_tcp("b", 8081);
        node.ask_tcp(Some("a"), CLUSTER_IP.into()).unwrap();
        // And without a change, the check does.
        Socket::open().unwrap().delete_tables("corten-proxy").unwrap();
        node.check();
        assert!(node.sync().replaced);
        node.ask_tcp(Some("a"), CLUSTER_IP.into()).unwrap();
        corten_proxy::cleanup(node.config()).unwrap();
        assert!(Socket::open().unwrap().tables().unwrap().iter().all(|table| table.name != "corten-proxy"));
    });
}

/// Administrators read a node's rules with `nft`, which must be able to list ours.
#[test]
fn the_nft_command_can_list_the_rules() {
    on_node(|| async {
        let mut node = Node::start(&["client", "a", "b"]).await;
        node.service(&node_port(r#","sessionAffinity":"ClientIP","externalTrafficPolicy":"Local""#));
        let json = slice("web", "TCP", 8080, &[("a", &node), ("b", &node)]);
        node.slice("web-1", &json);
        let six = web(r#","sessionAffinity":"ClientIP","clusterIPs":["fd00:96::1"]"#);
        node.service(&six.replace("\"web\"", "\"six\"").replace("10.96.0.1", "fd00:96::1"));
        let json = slice6("six", "TCP", 8080, &[("a", &node), ("b", &node)]);
        node.slice("six-1", &json);
        node.sync();
        match std::process::Command::new("nft").args(["list", "ruleset"]).output() {
            Ok(output) => {
                let listed = String::from_utf8_lossy(&output.stdout);
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {errors}", output.status);
                for shown in
                    ["map services", "10.96.0.", "fd00:96::1", "external-local-pick", &node.address("b").to_string()]
                {
                    assert!(listed.contains(shown), "{shown}: {listed}");
                }
            }
            Err(error) => eprintln!("skipped: no nft command: {error}"),
        }
    });
}
