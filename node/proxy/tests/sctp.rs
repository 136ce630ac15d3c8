//! Services of SCTP: packets by hand, because not every kernel has sockets of it, while all of them translate it.

#![allow(clippy::unwrap_used, dead_code)]

mod node;
#[path = "../../network/tests/sctp/mod.rs"]
mod sctp;

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use node::{Node, TIMEOUT, on_node, slice};
use sctp::{Chunk, Raw, Received};

fn ipv4(address: IpAddr) -> Ipv4Addr {
    let IpAddr::V4(address) = address else { panic!("{address}") };
    address
}

#[test]
fn sctp_is_translated_there_and_back_at_cluster_addresses_and_node_ports() {
    on_node(|| async {
        let mut node = Node::start(&["server", "client"]).await;
        node.service(
            r#"{"metadata":{"name":"web","namespace":"default"},
                "spec":{"type":"NodePort","clusterIP":"10.96.0.1",
                        "ports":[{"name":"p","protocol":"SCTP","port":80,"nodePort":30080}]}}"#,
        );
        node.slice("web-1", &slice("web", "SCTP", 5060, &[("server", &node)]));
        node.sync();
        let client = ipv4(node.address("client"));
        let at_server = node.enter(Some("server"), || Raw::open(TIMEOUT));
        let at_client = node.enter(Some("client"), || Raw::open(TIMEOUT));
        let gateway = ipv4(node.gateway());
        for (port, service) in
            [(1001, SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, 1), 80)), (1002, SocketAddrV4::new(gateway, 30080))]
        {
            at_client.send(port, service, Chunk::Init);
            let received = at_server.receive().unwrap();
            assert_eq!((received.port, received.chunk), (5060, Chunk::Init as u8), "{service}");
            if service.port() == 80 {
                assert_eq!(received.from, SocketAddrV4::new(client, port), "a pod keeps its address");
            } else {
                assert_eq!(*received.from.ip(), gateway, "from outside comes the node");
            }
            at_server.send(5060, received.from, Chunk::InitAck);
            let answer = Received { from: service, port, chunk: Chunk::InitAck as u8 };
            assert_eq!(at_client.receive().unwrap(), answer, "the answer is the Service's");
        }
    });
}
