//! Round trips through the kernel, each in a network namespace of its own that dies with its thread.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use corten_nftables::{
    Batch, Chain, ChainType, Conntrack, Data, DataType, Element, Error, Family, Field, Hook, Index, InterfaceName,
    Port, Protocol, Register, Reject, Rule, Set, Socket, Table, Value, Verdict, flags, priority,
};
use nix::sched::{CloneFlags, unshare};

const SERVICE_KEY: [DataType; 3] = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
const SERVICE: [Field; 3] = [Field::IpDaddr, Field::L4Proto, Field::ThDport];

/// Runs a test on a thread in a fresh network namespace.
fn in_namespace(test: impl FnOnce(&mut Socket) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        test(&mut Socket::open().unwrap());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn table() -> Table {
    Table::new(Family::Ipv4, "corten-test")
}

fn bring_loopback_up() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: an ifreq is plain old data, for which all zeros is a value.
    let mut request: nix::libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as _;
    request.ifr_name[1] = b'o' as _;
    request.ifr_ifru.ifru_flags = nix::libc::IFF_UP as _;
    // SAFETY: the request is a complete, initialised ifreq and the socket is open.
    let result =
        unsafe { nix::libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), nix::libc::SIOCSIFFLAGS, &request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn tables_chains_and_sets_are_listed_as_declared() {
    in_namespace(|socket| {
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_chain(&table(), &Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, priority::DSTNAT));
        batch.add_chain(&table(), &Chain::regular("services"));
        batch.add_set(&table(), &Set::vmap("service-chains", &SERVICE_KEY));
        batch.add_set(&table(), &Set::new("nets", &[DataType::Ipv4Addr]).intervals());
        socket.apply(batch).unwrap();

        assert_eq!(socket.tables().unwrap(), [table()]);
        let chains: Vec<_> = socket.chains(&table()).unwrap().into_iter().map(|c| (c.name, c.hook)).collect();
        assert_eq!(chains, [("prerouting".to_owned(), Some((0, -100))), ("services".to_owned(), None)]);
        let sets: Vec<_> =
            socket.sets(&table()).unwrap().into_iter().map(|s| (s.name, s.key_length, s.is_map)).collect();
        assert_eq!(sets, [("service-chains".to_owned(), 12, true), ("nets".to_owned(), 4, false)]);
    });
}

#[test]
fn elements_are_added_replaced_and_deleted_in_one_batch() {
    in_namespace(|socket| {
        let map = Set::map(
            "endpoints",
            &[DataType::Ipv4Addr, DataType::InetProto, DataType::InetService, DataType::Mark],
            &[DataType::Ipv4Addr, DataType::InetService],
        );
        let element = |index: u32, last: u8| {
            let key = (Ipv4Addr::new(10, 96, 0, 1), Protocol::Tcp, Port(443), Index(index));
            Element::value(key, (Ipv4Addr::new(10, 244, 0, last), Port(6443)))
        };
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_set(&table(), &map);
        batch.add_elements(&table(), &map, &[element(0, 2), element(1, 3)]);
        socket.apply(batch).unwrap();

        let mut batch = Batch::new();
        batch.delete_elements(&table(), &map, &[element(0, 2), element(1, 3)]);
        batch.add_elements(&table(), &map, &[element(0, 9)]);
        socket.apply(batch).unwrap();
        assert_eq!(socket.elements(&table(), "endpoints").unwrap(), [element(0, 9)]);
    });
}

#[test]
fn verdict_maps_and_intervals_are_listed() {
    in_namespace(|socket| {
        let chains = Set::vmap("chains", &SERVICE_KEY);
        let nets = Set::new("nets", &[DataType::Ipv4Addr]).intervals();
        let ports = Set::new("ports", &[DataType::Ipv4Addr, DataType::InetService]).intervals();
        let verdict =
            Element::verdict((Ipv4Addr::new(10, 96, 0, 1), Protocol::Udp, Port(53)), Verdict::Goto("dns".to_owned()));
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_chain(&table(), &Chain::regular("dns"));
        for set in [&chains, &nets, &ports] {
            batch.add_set(&table(), set);
        }
        batch.add_elements(&table(), &chains, std::slice::from_ref(&verdict));
        let prefixes = [("10.0.0.0", 8), ("224.0.0.0", 3)];
        let prefixes = prefixes.map(|(address, length)| Element::prefix(address.parse().unwrap(), length));
        batch.add_elements(&table(), &nets, &prefixes);
        let range = Element::range((Ipv4Addr::new(10, 0, 0, 0), Port(1)), (Ipv4Addr::new(10, 0, 0, 255), Port(99)));
        batch.add_elements(&table(), &ports, std::slice::from_ref(&range));
        socket.apply(batch).unwrap();

        assert_eq!(socket.elements(&table(), "chains").unwrap(), [verdict]);
        let starts: Vec<Value> = socket.elements(&table(), "nets").unwrap().into_iter().map(|e| e.key).collect();
        assert_eq!(starts.len(), 2);
        assert!(starts.contains(&Ipv4Addr::new(224, 0, 0, 0).into()));
        assert_eq!(socket.elements(&table(), "ports").unwrap(), [range]);

        let mut batch = Batch::new();
        batch.delete_elements(&table(), &nets, &prefixes);
        batch.flush_set(&table(), "ports");
        socket.apply(batch).unwrap();
        assert!(socket.elements(&table(), "nets").unwrap().is_empty());
        assert!(socket.elements(&table(), "ports").unwrap().is_empty());
    });
}

/// The kernel checks every expression as it takes a rule, so that each must be well encoded.
#[test]
fn every_expression_is_accepted_by_the_kernel() {
    let ten: IpAddr = "10.244.0.0".parse().unwrap();
    let bridge = InterfaceName("corten0".to_owned());
    let affinity_key = [Field::IpSaddr, Field::IpDaddr, Field::L4Proto, Field::ThDport];
    let rules = [
        ("prerouting", "payload lookup", Rule::new().in_set(&[Field::IpDaddr], "nets")),
        ("prerouting", "payload lookup", Rule::new().not_in_set(&[Field::IpSaddr], "nets")),
        ("prerouting", "payload meta payload lookup", Rule::new().vmap(&SERVICE, "chains")),
        ("postrouting", "payload bitwise cmp masq", Rule::new().not_in_prefix(Field::IpSaddr, ten, 16).masquerade()),
        ("prerouting", "meta bitwise meta", Rule::new().mark_or(0x4000)),
        ("prerouting", "immediate ct", Rule::new().ct_mark_set(7)),
        ("prerouting", "ct bitwise cmp", Rule::new().has_any(Field::CtStatus, flags::CT_STATUS_DNAT)),
        ("prerouting", "ct cmp", Rule::new().eq(Field::CtOriginalIpDaddr, Ipv4Addr::new(1, 2, 3, 4))),
        ("prerouting", "ct cmp", Rule::new().eq(Field::CtOriginalDport, Port(80))),
        ("prerouting", "fib cmp", Rule::new().eq(Field::FibDaddrType, corten_nftables::Bytes4(Field::ADDRESS_LOCAL))),
        ("prerouting", "meta cmp counter", Rule::new().ne(Field::Iifname, bridge).counter()),
        ("prerouting", "immediate immediate nat", Rule::new().dnat_to("10.0.0.1".parse().unwrap(), Some(Port(1)))),
        (
            "prerouting",
            "meta cmp immediate redir",
            Rule::new().eq(Field::L4Proto, Protocol::Tcp).redirect_to(Port(8080)),
        ),
        ("prerouting", "numgen cmp", Rule::new().eq(Field::Random(3), Index(2))),
        ("output", "numgen cmp", Rule::new().eq(Field::RandomFrom { modulus: 3, first: 9 }, Index(9))),
        ("filter", "limit log", Rule::new().limit_per_second(5, 10).log("corten: ")),
        ("filter", "meta cmp reject", Rule::new().eq(Field::L4Proto, Protocol::Tcp).reject(Reject::TcpReset)),
        ("filter", "reject", Rule::new().reject(Reject::IcmpPortUnreachable)),
        ("filter", "immediate", Rule::new().drop()),
        ("postrouting", "immediate nat", Rule::new().snat_to("10.0.0.1".parse().unwrap())),
        ("postrouting", "masq", Rule::new().masquerade()),
        (
            "prerouting",
            "payload meta payload numgen lookup nat",
            Rule::new().dnat_map(
                Family::Ipv4,
                &[Field::IpDaddr, Field::L4Proto, Field::ThDport, Field::Random(2)],
                "endpoints",
            ),
        ),
        (
            "prerouting",
            "payload payload meta payload lookup dynset nat",
            Rule::new()
                .load_at(Register(0), &affinity_key)
                .lookup_at("affinity", Register(0), Register(4))
                .update_at("affinity", Register(0), Some(Register(4)), Some(Duration::from_secs(30)))
                .dnat_at(Family::Ipv4, Register(4), Some(Register(5))),
        ),
    ];
    in_namespace(move |socket| {
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_chain(&table(), &Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, priority::DSTNAT));
        batch.add_chain(&table(), &Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT));
        batch.add_chain(&table(), &Chain::base("output", ChainType::Nat, Hook::Output, priority::DSTNAT));
        batch.add_chain(&table(), &Chain::base("filter", ChainType::Filter, Hook::Prerouting, -110));
        batch.add_set(&table(), &Set::new("nets", &[DataType::Ipv4Addr]).intervals());
        batch.add_set(&table(), &Set::vmap("chains", &SERVICE_KEY));
        let [address, protocol, port] = SERVICE_KEY;
        batch.add_set(&table(), &Set::map("endpoints", &[address, protocol, port, DataType::Mark], &[address, port]));
        batch.add_set(
            &table(),
            &Set::map("affinity", &[address, address, protocol, port], &[address, port])
                .dynamic(Duration::from_secs(10_800), 1024),
        );
        socket.apply(batch).unwrap();
        for (chain, expected, rule) in &rules {
            let mut batch = Batch::new();
            batch.flush_chain(&table(), chain);
            batch.add_rule(&table(), chain, &rule.clone().comment(expected));
            socket.apply(batch).unwrap_or_else(|error| panic!("{expected}: {error}"));
            let listed = socket.rules(&table()).unwrap();
            let listed = listed.iter().find(|rule| rule.comment.as_deref() == Some(expected)).unwrap();
            assert_eq!(listed.expressions.join(" "), *expected);
        }
    });
}

#[test]
fn a_refused_batch_changes_nothing_and_names_the_refused_operation() {
    in_namespace(|socket| {
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_chain(&table(), &Chain::regular("a"));
        batch.add_rule(&table(), "a", &Rule::new().jump("nowhere"));
        let error = socket.apply(batch).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert!(error.to_string().contains("add rule corten-test a (immediate)"), "{error}");
        assert_eq!(socket.tables().unwrap(), []);
    });
}

#[test]
fn a_batch_of_a_past_generation_is_stale() {
    in_namespace(|socket| {
        let generation = socket.generation().unwrap();
        let add = || {
            let mut batch = Batch::new();
            batch.add_table(&table());
            batch
        };
        socket.apply(add().at_generation(generation)).unwrap();
        assert!(matches!(socket.apply(add().at_generation(generation)), Err(Error::Stale)));
    });
}

#[test]
fn tables_with_a_prefix_are_deleted_and_others_stay() {
    in_namespace(|socket| {
        let other = Table::new(Family::Ipv6, "other");
        let mut batch = Batch::new();
        batch.replace_table(&table());
        batch.add_chain(&table(), &Chain::base("input", ChainType::Filter, Hook::Input, priority::FILTER));
        batch.add_table(&other);
        socket.apply(batch).unwrap();
        assert_eq!(socket.delete_tables("corten-").unwrap(), [table()]);
        assert_eq!(socket.tables().unwrap(), [other]);
    });
}

#[test]
fn ten_thousand_elements_fit_one_batch() {
    in_namespace(|socket| {
        let map = Set::map("m", &SERVICE_KEY, &[DataType::Ipv4Addr, DataType::InetService]);
        let elements: Vec<Element> = (0..10_000u32)
            .map(|n| {
                Element::value((Ipv4Addr::from(0x0a60_0000 + n), Protocol::Tcp, Port(80)), (Ipv4Addr::from(n), Port(1)))
            })
            .collect();
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_set(&table(), &map);
        batch.add_elements(&table(), &map, &elements);
        socket.apply(batch).unwrap();
        // While the kernel grows the map's hash table, a listing may skip elements.
        let bound = std::time::Instant::now() + Duration::from_secs(300);
        loop {
            let mut listed = socket.elements(&table(), "m").unwrap();
            listed.sort();
            if listed == elements {
                break;
            }
            assert!(std::time::Instant::now() < bound, "{} of {} elements are listed", listed.len(), elements.len());
        }
    });
}

/// A datagram to a translated address arrives, its flow is listed, and deleting the flow removes it.
#[test]
fn translation_works_and_flows_can_be_deleted() {
    in_namespace(|socket| {
        bring_loopback_up();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let port = server.local_addr().unwrap().port();
        let map = Set::map("services", &SERVICE_KEY, &[DataType::Ipv4Addr, DataType::InetService]);
        let service = Ipv4Addr::new(127, 9, 9, 9);
        let mut batch = Batch::new();
        batch.add_table(&table());
        batch.add_chain(&table(), &Chain::base("output", ChainType::Nat, Hook::Output, priority::DSTNAT));
        batch.add_set(&table(), &map);
        let element = Element::value((service, Protocol::Udp, Port(53)), (Ipv4Addr::LOCALHOST, Port(port)));
        assert!(matches!(element.data, Some(Data::Value(_))));
        batch.add_elements(&table(), &map, &[element]);
        batch.add_rule(&table(), "output", &Rule::new().counter().dnat_map(Family::Ipv4, &SERVICE, "services"));
        socket.apply(batch).unwrap();

        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"hello", (service, 53)).unwrap();
        let mut buffer = [0; 16];
        let (length, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(socket.rules(&table()).unwrap()[0].packets, Some(1));

        let mut conntrack = Conntrack::open().unwrap();
        let flows = conntrack.flows(17).unwrap();
        let flow = flows.iter().find(|flow| flow.destination == (service.into(), 53)).unwrap();
        assert_eq!(flow.answered_by, (Ipv4Addr::LOCALHOST.into(), port));
        assert_eq!(conntrack.delete_matching(17, |flow| flow.destination.1 == 53).unwrap(), 1);
        let deadline = Instant::now() + Duration::from_secs(300);
        while !conntrack.flows(17).unwrap().is_empty() {
            assert!(Instant::now() < deadline, "the flow stayed");
        }
    });
}
