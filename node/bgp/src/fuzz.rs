//! The door of the fuzz target to the codec.

use crate::message::{AsWidth, Message};

/// Decodes messages until the bytes end or one is bad; each decodes again from its encoding.
pub fn messages(input: &[u8]) {
    for width in [AsWidth::Two, AsWidth::Four] {
        let mut bytes = input.to_vec();
        while let Ok(Some(message)) = Message::take(&mut bytes, width) {
            let encoded = message.encode(width);
            assert_eq!(Message::decode(&encoded, width), Ok(message), "a message survives its encoding");
        }
    }
}
