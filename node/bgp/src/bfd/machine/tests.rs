//! The state machine: two sides that talk, and one that stops.

use proptest::prelude::*;

use super::*;

fn machine(discriminator: u32) -> Machine {
    let settings = Settings {
        transmit_interval: Duration::from_millis(300),
        receive_interval: Duration::from_millis(200),
        multiplier: 3,
    };
    Machine::new(settings, discriminator)
}

/// Two machines whose sessions are up, after three packets.
fn pair(now: Instant) -> [Machine; 2] {
    let mut ours = machine(1);
    let mut theirs = machine(2);
    assert_eq!(theirs.receive(&ours.packet(), now), Reaction::default());
    assert_eq!(ours.receive(&theirs.packet(), now).transition, Some(Transition::Up));
    let answered = theirs.receive(&ours.packet(), now);
    assert_eq!(answered.transition, Some(Transition::Up));
    let answer = answered.answer.expect("a packet with the poll bit is answered");
    assert!(answer.is_final && !answer.poll);
    ours.receive(&answer, now);
    [ours, theirs]
}

#[test]
fn two_sides_come_up_and_agree_on_shorter_intervals() {
    let now = Instant::now();
    assert_eq!(machine(1).interval(), Some(SLOW));
    let [ours, theirs] = pair(now);
    assert!(!ours.packet().poll, "the final bit ends the poll");
    assert!(theirs.packet().poll);
    assert_eq!(ours.interval(), Some(Duration::from_millis(300)));
    assert_eq!(theirs.packet().yours, 1);
}

#[test]
fn silence_ends_the_session_after_the_peers_multiplier() {
    let now = Instant::now();
    let [mut ours, mut theirs] = pair(now);
    ours.receive(&theirs.packet(), now);
    assert_eq!(ours.deadline(), Some(now + Duration::from_millis(900)));
    assert_eq!(ours.tick(now + Duration::from_millis(899)), None);
    let lost = ours.tick(now + Duration::from_millis(900));
    assert_eq!(lost, Some(Transition::Lost("BFD received no packet for 900 ms".to_owned())));
    assert_eq!(ours.tick(now + Duration::from_secs(9)), None, "once");
    assert_eq!(ours.packet().yours, 0);
    let signaled = theirs.receive(&ours.packet(), now).transition;
    assert_eq!(signaled, Some(Transition::Lost("BFD: the peer no longer receives packets".to_owned())));
}

#[test]
fn a_session_that_is_turned_off_is_not_a_lost_peer() {
    let now = Instant::now();
    let [mut ours, mut theirs] = pair(now);
    assert_eq!(theirs.receive(&ours.turn_off(), now).transition, Some(Transition::TurnedOff));
    assert_eq!(ours.receive(&theirs.packet(), now), Reaction::default(), "it takes no packet");
}

#[test]
fn a_packet_of_another_session_and_a_wish_for_silence_are_honoured() {
    let now = Instant::now();
    let [mut ours, theirs] = pair(now);
    let foreign = Packet { yours: 9, state: State::Down, ..theirs.packet() };
    assert_eq!(ours.receive(&foreign, now), Reaction::default());
    ours.receive(&Packet { min_receive: Duration::ZERO, ..theirs.packet() }, now);
    assert_eq!(ours.interval(), None);
}

proptest! {
    /// Whatever is lost, two sides that talk again come up again.
    #[test]
    fn two_sides_come_up_after_any_loss(steps in proptest::collection::vec(0..4_u8, 0..60)) {
        let mut now = Instant::now();
        let mut ours = machine(1);
        let mut theirs = machine(2);
        for step in steps {
            now += Duration::from_millis(400);
            match step {
                0 => drop(theirs.receive(&ours.packet(), now)),
                1 => drop(ours.receive(&theirs.packet(), now)),
                2 => drop(ours.tick(now)),
                _ => drop(theirs.tick(now)),
            }
        }
        for _ in 0..8 {
            now += Duration::from_millis(100);
            theirs.receive(&ours.packet(), now);
            ours.receive(&theirs.packet(), now);
        }
        prop_assert_eq!((ours.state, theirs.state), (State::Up, State::Up));
    }
}
