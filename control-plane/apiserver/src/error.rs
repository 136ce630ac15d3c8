//! Errors of building, starting and serving the API server.
//!
//! Requests never end in this type: they end in a `corten_meta::Status`, which is the response itself.

/// An error of the API server as a component.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("configuration: {0}")]
    Config(String),
    #[error("key material: {0}")]
    Key(String),
    #[error("store: {0}")]
    Store(#[from] corten_store::Error),
    #[error("stored object {key}: {reason}")]
    Object { key: String, reason: String },
    #[error("unable to transform key {}: {reason}", corten_meta::quote::quote(key))]
    Sealed { key: String, reason: String },
    #[error("bootstrap: {0}")]
    Bootstrap(String),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("listener: {0}")]
    Io(#[from] std::io::Error),
}

/// Joins messages as upstream does: each once, several in brackets.
pub fn aggregate(mut messages: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    messages.retain(|message| seen.insert(message.clone()));
    if messages.len() < 2 { messages.concat() } else { format!("[{}]", messages.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::aggregate;

    #[test]
    fn messages_are_joined_once() {
        for (messages, wanted) in [(&[][..], ""), (&["a"], "a"), (&["a", "a"], "a"), (&["b", "a", "b"], "[b, a]")] {
            assert_eq!(aggregate(messages.iter().map(ToString::to_string).collect()), wanted);
        }
    }
}
