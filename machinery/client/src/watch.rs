//! Watch events as bytes: one JSON document per line, each decoded as it arrives.

use crate::{Error, WatchEvent};
use bytes::{Bytes, BytesMut};
use corten_meta::{Status, Value, parse_wire};
use futures::StreamExt;
use futures::stream::BoxStream;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;

/// The longest frame. An object is at most 3 MiB.
const MAX_FRAME: usize = 16 << 20;

/// The annotation on the bookmark that closes the initial events of a streaming list.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Decodes a stream of bytes into events. The stream ends after the first error.
pub fn decode(bytes: BoxStream<'static, Result<Bytes, Error>>) -> BoxStream<'static, Result<WatchEvent, Error>> {
    let frames = Frames { bytes, buffer: BytesMut::new(), scanned: 0, ended: false };
    futures::stream::unfold(frames, |mut frames| async move {
        let frame = match frames.next().await? {
            Ok(frame) => frame,
            Err(error) => {
                frames.ended = true;
                return Some((Err(error), frames));
            }
        };
        let event = decode_frame(&frame);
        frames.ended |= event.is_err();
        Some((event, frames))
    })
    .boxed()
}

struct Frames {
    bytes: BoxStream<'static, Result<Bytes, Error>>,
    buffer: BytesMut,
    /// The position before which the buffer has no newline.
    scanned: usize,
    ended: bool,
}

impl Frames {
    /// Returns the next line that is not blank, without its newline.
    async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            if let Some(length) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(self.scanned + length + 1).freeze();
                self.scanned = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Some(Ok(line));
            }
            self.scanned = self.buffer.len();
            if self.ended {
                return None;
            }
            if self.buffer.len() > MAX_FRAME {
                return Some(Err(Error::Decode(format!("a watch frame is longer than {MAX_FRAME} bytes"))));
            }
            match self.bytes.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    // A last frame without a newline is complete if the server ended the response in order.
                    self.ended = true;
                    if !self.buffer.trim_ascii().is_empty() {
                        self.buffer.extend_from_slice(b"\n");
                    }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Decodes one event from one line.
pub fn decode_frame(line: &[u8]) -> Result<WatchEvent, Error> {
    let frame: Frame<'_> =
        serde_json::from_slice(line).map_err(|e| Error::Decode(format!("cannot decode a watch event: {e}")))?;
    let bytes = frame.object.get().as_bytes();
    let object = || parse_wire(bytes).map(Arc::new);
    Ok(match frame.kind {
        "ADDED" => WatchEvent::Added(object()?),
        "MODIFIED" => WatchEvent::Modified(object()?),
        "DELETED" => WatchEvent::Deleted(object()?),
        "BOOKMARK" => bookmark(&value(bytes)?)?,
        "ERROR" => {
            let value = value(bytes)?;
            WatchEvent::Error(Status::from_value(&value).unwrap_or_else(|| Status::internal(&value)))
        }
        other => return Err(Error::Decode(format!("unknown watch event type {other:?}"))),
    })
}

fn value(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes).map_err(|e| Error::Decode(e.to_string()))
}

fn bookmark(object: &Value) -> Result<WatchEvent, Error> {
    let revision = corten_meta::resource_version(object)
        .parse()
        .map_err(|_| Error::Decode("a bookmark has no resource version".into()))?;
    let initial_events_end = corten_meta::annotations(object).get(INITIAL_EVENTS_END).is_some_and(|v| v == "true");
    Ok(WatchEvent::Bookmark { revision, initial_events_end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: &str = concat!(
        r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"7","name":"a"}}}"#,
        "\n\n",
        r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n",
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"old","code":410}}"#,
    );

    fn describe(event: &WatchEvent) -> String {
        match event {
            WatchEvent::Added(o) => format!("added {} at {}", o.key(), o.revision),
            WatchEvent::Modified(o) => format!("modified {} at {}", o.key(), o.revision),
            WatchEvent::Deleted(o) => format!("deleted {} at {}", o.key(), o.revision),
            WatchEvent::Bookmark { revision, initial_events_end } => {
                format!("bookmark {revision} {initial_events_end}")
            }
            WatchEvent::Error(status) => format!("error {}", status.reason),
        }
    }

    #[tokio::test]
    async fn frames_may_be_cut_anywhere() {
        for size in [1, 7, 64, 4096] {
            let chunks: Vec<Result<Bytes, Error>> =
                FRAMES.as_bytes().chunks(size).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
            let events: Vec<_> = decode(futures::stream::iter(chunks).boxed()).collect().await;
            let events: Vec<_> = events.iter().map(|e| describe(e.as_ref().unwrap())).collect();
            assert_eq!(events, ["added a at 7", "bookmark 9 true", "error Expired"], "chunks of {size}");
        }
    }

    #[tokio::test]
    async fn an_error_ends_the_stream() {
        let chunks = vec![Ok(Bytes::from_static(b"{\"type\":\"ODD\",\"object\":{}}\n")), Ok(Bytes::from(FRAMES))];
        let events: Vec<_> = decode(futures::stream::iter(chunks).boxed()).collect().await;
        assert_eq!(events.len(), 1);
        assert!(matches!(&events[0], Err(Error::Decode(message)) if message.contains("ODD")));
    }
}
