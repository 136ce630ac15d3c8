//! Messages: properties of the codec, and examples from RFCs.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::prefix::Prefix;

fn prefix(family: Family) -> BoxedStrategy<Prefix> {
    match family {
        Family::Ipv4 => (any::<u32>(), 0..=32_u8)
            .prop_map(|(bits, length)| Prefix::containing(std::net::Ipv4Addr::from(bits).into(), length))
            .boxed(),
        Family::Ipv6 => (any::<u128>(), 0..=128_u8)
            .prop_map(|(bits, length)| Prefix::containing(std::net::Ipv6Addr::from(bits).into(), length))
            .boxed(),
    }
}

fn prefixes(family: Family) -> impl Strategy<Value = Vec<Prefix>> {
    vec(prefix(family), 0..40)
}

fn path() -> impl Strategy<Value = Vec<Segment>> {
    let segment =
        (any::<bool>(), vec(any::<u32>(), 0..5)).prop_map(|(is_sequence, numbers)| Segment { is_sequence, numbers });
    vec(segment, 0..3)
}

fn attribute() -> impl Strategy<Value = Attribute> {
    prop_oneof![
        any::<u8>().prop_map(Attribute::Origin),
        path().prop_map(Attribute::AsPath),
        path().prop_map(Attribute::As4Path),
        any::<u32>().prop_map(|bits| Attribute::NextHop(bits.into())),
        any::<u32>().prop_map(Attribute::LocalPref),
        vec(any::<u32>(), 0..80).prop_map(Attribute::Communities),
        vec(any::<(u32, u32, u32)>(), 0..9).prop_map(|all| {
            let large = |(global, local_1, local_2)| LargeCommunity { global, local_1, local_2 };
            Attribute::LargeCommunities(all.into_iter().map(large).collect())
        }),
        (any::<u128>(), prefixes(Family::Ipv6))
            .prop_map(|(hop, prefixes)| Attribute::Reach { next_hop: hop.into(), prefixes }),
        prefixes(Family::Ipv6).prop_map(Attribute::Unreach),
        (128..=u8::MAX, vec(any::<u8>(), 0..300)).prop_map(|(code, value)| Attribute::Other {
            flags: 0xc0,
            code,
            value
        }),
    ]
}

fn capability() -> impl Strategy<Value = Capability> {
    let family = prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)];
    let restart = (any::<bool>(), 0..4096_u16, vec((family.clone(), any::<bool>()), 0..3)).prop_map(
        |(restarted, restart_time, families)| {
            let one = |(family, forwarding_preserved)| RestartFamily { family, forwarding_preserved };
            let families = families.into_iter().map(one).collect();
            Capability::GracefulRestart { restarted, restart_time, families }
        },
    );
    prop_oneof![
        family.prop_map(Capability::Multiprotocol),
        Just(Capability::RouteRefresh),
        any::<u32>().prop_map(Capability::FourOctetAs),
        restart,
        (128..=u8::MAX, vec(any::<u8>(), 0..20)).prop_map(|(code, value)| Capability::Other { code, value }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let open = (any::<u16>(), any::<u16>(), any::<u32>(), vec(capability(), 0..40)).prop_map(
        |(as_field, hold_time, id, capabilities)| {
            Message::Open(Open { as_field, hold_time, router_id: id.into(), capabilities })
        },
    );
    let update = (prefixes(Family::Ipv4), vec(attribute(), 0..4), prefixes(Family::Ipv4))
        .prop_map(|(withdrawn, attributes, announced)| Message::Update(Update { withdrawn, attributes, announced }));
    let notification = (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..30))
        .prop_map(|(code, subcode, data)| Message::Notification(Notification { code, subcode, data }));
    prop_oneof![
        open,
        update,
        notification,
        Just(Message::Keepalive),
        Just(Message::RouteRefresh(Some(Family::Ipv6))),
        Just(Message::RouteRefresh(None)),
    ]
}

proptest! {
    #[test]
    fn an_encoded_message_decodes_to_itself(message in message()) {
        let bytes = message.encode(AsWidth::Four);
        prop_assume!(bytes.len() <= MOST);
        prop_assert_eq!(Message::decode(&bytes, AsWidth::Four), Ok(message));
    }

    #[test]
    fn messages_are_taken_off_a_stream_in_any_pieces(messages in vec(message(), 1..6), piece in 1..64_usize) {
        let encoded: Vec<Vec<u8>> = messages.iter().map(|one| one.encode(AsWidth::Four)).collect();
        prop_assume!(encoded.iter().all(|one| one.len() <= MOST));
        let mut buffer = Vec::new();
        let mut taken = Vec::new();
        for bytes in encoded.concat().chunks(piece) {
            buffer.extend_from_slice(bytes);
            while let Some(message) = Message::take(&mut buffer, AsWidth::Four).unwrap() {
                taken.push(message);
            }
        }
        prop_assert_eq!(taken, messages);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn any_bytes_decode_or_give_a_notification(body in vec(any::<u8>(), 0..200), kind in 0..8_u8) {
        let mut bytes = vec![0xff; 16];
        bytes.extend_from_slice(&((HEADER + body.len()) as u16).to_be_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(&body);
        if let Ok(message) = Message::decode(&bytes, AsWidth::Four) {
            let again = Message::decode(&message.encode(AsWidth::Four), AsWidth::Four);
            prop_assert_eq!(again, Ok(message));
        }
    }
}

#[test]
fn a_path_for_two_byte_speakers_has_the_number_of_transition() {
    let path = vec![Segment { is_sequence: true, numbers: vec![64_500, 4_200_000_000] }];
    let update = Update { attributes: vec![Attribute::AsPath(path)], ..Update::default() };
    let bytes = Message::Update(update).encode(AsWidth::Two);
    let Ok(Message::Update(read)) = Message::decode(&bytes, AsWidth::Two) else { panic!("an UPDATE") };
    let expected = vec![Segment { is_sequence: true, numbers: vec![64_500, 23_456] }];
    assert_eq!(read.attributes, [Attribute::AsPath(expected)]);
}

#[test]
fn a_header_with_a_bad_marker_length_or_type_is_an_error() {
    let good = Message::Keepalive.encode(AsWidth::Four);
    let code = |bytes: &[u8]| Message::decode(bytes, AsWidth::Four).unwrap_err();
    let mut marker = good.clone();
    marker[3] = 0;
    assert_eq!((code(&marker).code, code(&marker).subcode), (1, 1));
    let mut length = good.clone();
    length[17] = 18;
    assert_eq!((code(&length).code, code(&length).subcode), (1, 2));
    let mut huge = good.clone();
    huge[16] = 0xff;
    assert!(Message::take(&mut huge, AsWidth::Four).is_err(), "a length over the limit is refused before it arrives");
    let mut kind = good;
    kind[18] = 9;
    assert_eq!((code(&kind).code, code(&kind).subcode), (1, 3));
}

#[test]
fn an_operators_message_is_shown_without_control_characters() {
    let mut data = vec![9];
    data.extend_from_slice(b"bye\x1b[31m!");
    let shown = Notification::new(Notification::CEASE, 2, data).to_string();
    assert_eq!(shown, "the session was shut down by the administrator (code 6, subcode 2): bye[31m!");
}
