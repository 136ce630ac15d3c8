//! The state machine: whole sessions as sequences of inputs, and properties of random ones.

use proptest::prelude::*;

use super::*;

fn settings() -> Settings {
    Settings {
        local_as: 64_512,
        peer_as: 64_513,
        router_id: Ipv4Addr::new(10, 0, 0, 1),
        hold_time: 90,
        restart_time: 120,
    }
}

fn peer(asn: u32, hold_time: u16) -> Message {
    let capabilities = vec![Capability::Multiprotocol(Family::Ipv4)];
    Message::Open(Open::new(asn, hold_time, Ipv4Addr::new(10, 0, 0, 9), capabilities))
}

fn established(now: Instant) -> Machine {
    let mut machine = Machine::new(settings(), now);
    assert_eq!(machine.handle(Input::Tick, now), [Output::Connect]);
    machine.handle(Input::Connected, now);
    assert_eq!(machine.handle(Input::Message(peer(64_513, 30)), now), [Output::Send(Message::Keepalive)]);
    let up = machine.handle(Input::Message(Message::Keepalive), now);
    assert!(matches!(&up[..], [Output::Up(negotiated)] if negotiated.takes_v4 && !negotiated.takes_v6));
    machine
}

#[test]
fn the_first_open_reports_a_restart_and_the_second_does_not() {
    let now = Instant::now();
    let restarted = |machine: &mut Machine, now: Instant| {
        machine.handle(Input::Tick, now);
        let outputs = machine.handle(Input::Connected, now);
        let [Output::Send(Message::Open(open))] = &outputs[..] else { panic!("an OPEN: {outputs:?}") };
        open.capabilities.iter().any(|one| matches!(one, Capability::GracefulRestart { restarted: true, .. }))
    };
    assert!(restarted(&mut Machine::new(settings(), now), now));
    let mut machine = established(now);
    machine.handle(Input::Closed("end of file".to_owned()), now);
    assert!(!restarted(&mut machine, now + LONGEST_WAIT));
}

#[test]
fn the_shorter_hold_time_rules_both_timers() {
    let now = Instant::now();
    let mut machine = established(now);
    assert_eq!(machine.deadline(), Some(now + Duration::from_secs(10)));
    let later = now + Duration::from_secs(10);
    assert_eq!(machine.handle(Input::Tick, later), [Output::Send(Message::Keepalive)]);
    machine.handle(Input::Message(Message::Keepalive), later);
    let late = later + Duration::from_secs(30);
    let outputs = machine.handle(Input::Tick, late);
    let [Output::Send(Message::Notification(sent)), Output::Close, Output::Down(_)] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(sent.code, Notification::HOLD_TIMER_EXPIRED);
}

#[test]
fn a_peer_with_another_as_number_is_refused_with_a_sentence() {
    let now = Instant::now();
    let mut machine = Machine::new(settings(), now);
    machine.handle(Input::Tick, now);
    machine.handle(Input::Connected, now);
    let outputs = machine.handle(Input::Message(peer(64_999, 90)), now);
    let [Output::Send(Message::Notification(sent)), Output::Close, Output::Down(reason)] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!((sent.code, sent.subcode), (2, 2));
    assert_eq!(reason.to_string(), "the peer has the AS number 64999, and spec.peerASN is 64513");
}

#[test]
fn waits_double_until_a_session_was_stable() {
    let start = Instant::now();
    let mut machine = Machine::new(settings(), start);
    let mut now = start;
    let mut waits = Vec::new();
    for _ in 0..7 {
        assert_eq!(machine.handle(Input::Tick, now), [Output::Connect]);
        machine.handle(Input::Failed("no route to host".to_owned()), now);
        let next = machine.deadline().unwrap();
        waits.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    let mut machine = established(now);
    machine.handle(Input::Closed("reset".to_owned()), now + STABLE);
    assert_eq!(machine.deadline(), Some(now + STABLE + FIRST_WAIT));
}

#[test]
fn a_malformed_update_does_not_end_the_session_and_a_malformed_header_does() {
    let now = Instant::now();
    let mut machine = established(now);
    let update = Notification::new(Notification::UPDATE_ERROR, 1, Vec::new());
    assert_eq!(machine.handle(Input::Malformed(update), now), []);
    let header = Notification::new(Notification::HEADER_ERROR, 1, Vec::new());
    assert_eq!(machine.handle(Input::Malformed(header), now).len(), 3);
    assert!(!machine.is_established());
}

#[test]
fn a_peer_asks_for_its_routes_again() {
    let now = Instant::now();
    let mut machine = established(now);
    let asked = Input::Message(Message::RouteRefresh(Some(Family::Ipv4)));
    assert_eq!(machine.handle(asked, now), [Output::Refresh(Family::Ipv4)]);
    assert_eq!(machine.handle(Input::Message(Message::RouteRefresh(None)), now), []);
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        Just(Input::Tick),
        Just(Input::Connected),
        Just(Input::Failed(String::new())),
        Just(Input::Closed(String::new())),
        Just(Input::Message(Message::Keepalive)),
        Just(Input::Message(peer(64_513, 90))),
        Just(Input::Message(peer(64_513, 0))),
        Just(Input::Message(peer(1, 90))),
        Just(Input::Message(Message::RouteRefresh(Some(Family::Ipv6)))),
        Just(Input::Message(Message::Notification(Notification::cease(2)))),
        Just(Input::Message(Message::Update(crate::message::Update::default()))),
        Just(Input::Malformed(Notification::new(1, 1, Vec::new()))),
    ]
}

proptest! {
    #[test]
    fn nothing_is_sent_after_a_close_and_a_tick_at_the_deadline_moves_it(
        inputs in proptest::collection::vec((input(), 0..40_u64), 0..60),
    ) {
        let mut now = Instant::now();
        let mut machine = Machine::new(settings(), now);
        let mut is_open = false;
        for (input, seconds) in inputs {
            now += Duration::from_secs(seconds);
            is_open |= input == Input::Connected && machine.deadline().is_none() && !machine.is_established();
            for output in machine.handle(input, now) {
                match output {
                    Output::Send(_) | Output::Up(_) | Output::Refresh(_) => prop_assert!(is_open),
                    Output::Close => is_open = false,
                    Output::Connect | Output::Down(_) => {}
                }
            }
            if let Some(deadline) = machine.deadline() {
                let at = deadline.max(now);
                let mut ticked = machine.clone();
                ticked.handle(Input::Tick, at);
                prop_assert!(ticked.deadline().is_none_or(|next| next > at), "a tick must make progress");
            }
        }
    }
}
