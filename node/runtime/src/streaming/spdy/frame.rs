//! SPDY/3.1 frames, as bytes. Pure: it keeps no state of streams.

use bytes::{Buf, BufMut, Bytes, BytesMut};

const VERSION: u16 = 3;
const FLAG_FIN: u8 = 1;
/// The largest frame that a peer may send.
const MAX_FRAME: usize = 4 << 20;
/// The most data in one sent frame.
pub(super) const MAX_DATA: usize = 32 << 10;

/// A frame. Header blocks are still compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    SynStream {
        stream: u32,
        fin: bool,
        headers: Bytes,
    },
    SynReply {
        stream: u32,
        fin: bool,
        headers: Bytes,
    },
    Reset {
        stream: u32,
        status: u32,
    },
    Settings,
    Ping {
        id: u32,
    },
    GoAway {
        last_stream: u32,
        status: u32,
    },
    Headers {
        stream: u32,
        fin: bool,
        headers: Bytes,
    },
    WindowUpdate {
        stream: u32,
        delta: u32,
    },
    Data {
        stream: u32,
        fin: bool,
        data: Bytes,
    },
    /// A kind of control frame that this version does not have; it is skipped.
    Unknown,
}

/// The reason why bytes are not frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a frame of SPDY version {0}")]
    Version(u16),
    #[error("a frame of {0} bytes")]
    TooLarge(usize),
    #[error("a frame that is shorter than its kind")]
    TooShort,
}

impl Frame {
    /// Takes a frame from the front of a buffer; returns `None` when it is incomplete.
    pub fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, Malformed> {
        if buffer.len() < 8 {
            return Ok(None);
        }
        let length = usize::from(buffer[5]) << 16 | usize::from(buffer[6]) << 8 | usize::from(buffer[7]);
        if length > MAX_FRAME {
            return Err(Malformed::TooLarge(length));
        }
        if buffer.len() < 8 + length {
            return Ok(None);
        }
        let mut head = buffer.split_to(8);
        let body = buffer.split_to(length).freeze();
        let word = head.get_u32();
        let fin = head.get_u8() & FLAG_FIN != 0;
        if word & 1 << 31 == 0 {
            return Ok(Some(Self::Data { stream: word, fin, data: body }));
        }
        let version = (word >> 16) as u16 & 0x7fff;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        Self::control(word as u16, fin, body).map(Some)
    }

    fn control(kind: u16, fin: bool, mut body: Bytes) -> Result<Self, Malformed> {
        let needed = match kind {
            1 => 10,
            2 | 6 | 8 => 4,
            3 | 7 | 9 => 8,
            _ => 0,
        };
        if body.len() < needed {
            return Err(Malformed::TooShort);
        }
        Ok(match kind {
            1 => {
                let stream = body.get_u32() & 0x7fff_ffff;
                // The associated stream, priority and slot mean nothing to this server.
                body.advance(6);
                Self::SynStream { stream, fin, headers: body }
            }
            2 => Self::SynReply { stream: body.get_u32() & 0x7fff_ffff, fin, headers: body },
            3 => Self::Reset { stream: body.get_u32() & 0x7fff_ffff, status: body.get_u32() },
            4 => Self::Settings,
            6 => Self::Ping { id: body.get_u32() },
            7 => Self::GoAway { last_stream: body.get_u32() & 0x7fff_ffff, status: body.get_u32() },
            8 => Self::Headers { stream: body.get_u32() & 0x7fff_ffff, fin, headers: body },
            9 => Self::WindowUpdate { stream: body.get_u32() & 0x7fff_ffff, delta: body.get_u32() & 0x7fff_ffff },
            _ => Self::Unknown,
        })
    }

    pub fn encode(&self, buffer: &mut BytesMut) {
        match self {
            Self::Data { stream, fin, data } => {
                buffer.put_u32(*stream);
                put_length(buffer, *fin, data.len());
                buffer.put_slice(data);
            }
            Self::SynStream { stream, fin, headers } => {
                put_control(buffer, 1, *fin, 10 + headers.len());
                buffer.put_u32(*stream);
                buffer.put_u32(0);
                buffer.put_u16(0);
                buffer.put_slice(headers);
            }
            Self::SynReply { stream, fin, headers } => put_headers(buffer, 2, *stream, *fin, headers),
            Self::Headers { stream, fin, headers } => put_headers(buffer, 8, *stream, *fin, headers),
            Self::Reset { stream, status } => put_pair(buffer, 3, *stream, *status),
            Self::GoAway { last_stream, status } => put_pair(buffer, 7, *last_stream, *status),
            Self::WindowUpdate { stream, delta } => put_pair(buffer, 9, *stream, *delta),
            Self::Ping { id } => {
                put_control(buffer, 6, false, 4);
                buffer.put_u32(*id);
            }
            Self::Settings => {
                put_control(buffer, 4, false, 4);
                buffer.put_u32(0);
            }
            Self::Unknown => {}
        }
    }
}

fn put_control(buffer: &mut BytesMut, kind: u16, fin: bool, length: usize) {
    buffer.put_u16(1 << 15 | VERSION);
    buffer.put_u16(kind);
    put_length(buffer, fin, length);
}

fn put_length(buffer: &mut BytesMut, fin: bool, length: usize) {
    buffer.put_u8(if fin { FLAG_FIN } else { 0 });
    buffer.put_uint(length as u64, 3);
}

fn put_headers(buffer: &mut BytesMut, kind: u16, stream: u32, fin: bool, headers: &Bytes) {
    put_control(buffer, kind, fin, 4 + headers.len());
    buffer.put_u32(stream);
    buffer.put_slice(headers);
}

fn put_pair(buffer: &mut BytesMut, kind: u16, first: u32, second: u32) {
    put_control(buffer, kind, false, 8);
    buffer.put_u32(first);
    buffer.put_u32(second);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_decoded_as_they_were_encoded_however_they_are_split() {
        let headers = Bytes::from_static(b"block");
        let frames = [
            Frame::SynStream { stream: 1, fin: false, headers: headers.clone() },
            Frame::SynReply { stream: 1, fin: true, headers: headers.clone() },
            Frame::Headers { stream: 3, fin: false, headers },
            Frame::Data { stream: 3, fin: true, data: Bytes::from_static(b"data") },
            Frame::Data { stream: 5, fin: false, data: Bytes::new() },
            Frame::Reset { stream: 7, status: 5 },
            Frame::Ping { id: 9 },
            Frame::GoAway { last_stream: 11, status: 0 },
            Frame::WindowUpdate { stream: 13, delta: 1000 },
            Frame::Settings,
        ];
        let mut wire = BytesMut::new();
        frames.iter().for_each(|frame| frame.encode(&mut wire));
        let mut buffer = BytesMut::new();
        let mut decoded = Vec::new();
        for byte in wire {
            buffer.put_u8(byte);
            decoded.extend(Frame::decode(&mut buffer).expect("a frame"));
        }
        assert_eq!(decoded, frames);
        assert!(buffer.is_empty());
    }

    #[test]
    fn frames_of_other_versions_are_refused() {
        let refused = |bytes: &[u8]| Frame::decode(&mut BytesMut::from(bytes)).expect_err("malformed");
        assert_eq!(refused(&[0x80, 2, 0, 1, 0, 0, 0, 0]), Malformed::Version(2));
        assert_eq!(refused(&[0x80, 3, 0, 1, 0, 0, 0, 1, 0]), Malformed::TooShort);
        assert!(matches!(refused(&[0, 0, 0, 1, 0, 255, 255, 255]), Malformed::TooLarge(_)));
        let unknown = Frame::decode(&mut BytesMut::from(&[0x80, 3, 0, 99, 0, 0, 0, 0][..]));
        assert_eq!(unknown, Ok(Some(Frame::Unknown)));
    }
}
