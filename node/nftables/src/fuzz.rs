//! Entry points for the fuzz targets: the kernel's answers as they come from a socket. Nothing else may use this.

use crate::socket::Received;
use crate::{conntrack, conversation, listing, socket};

/// Reads a datagram as an answer to every request of this package.
pub fn datagram(bytes: &[u8]) {
    for message in socket::messages(bytes) {
        let _ = socket::refusal(&message, "list");
        let Some((header, attributes)) = message.payload.split_at_checked(4) else { continue };
        let received = Received { family: header[0], attributes: attributes.to_vec() };
        let _ = listing::table(&received);
        let _ = listing::chain(&received);
        let _ = listing::set(&received);
        let _ = listing::rule(&received);
        let _ = listing::element(&received.attributes);
        let _ = conntrack::flow(&received);
    }
}

/// Reads a datagram as answers of a netlink connection; returns their bodies.
pub fn conversation(bytes: &[u8], sequence: u32) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    let _ = conversation::take(bytes, sequence, &mut answers);
    answers
}
