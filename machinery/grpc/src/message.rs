//! Messages as bytes: the codec that tonic moves them with, and the two conversions.

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Response, Status};

/// Passes a message on as it is on the wire.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    /// Takes the message out of tonic's buffer without a copy.
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

pub(crate) fn encode(message: impl Message) -> Bytes {
    message.encode_to_vec().into()
}

pub(crate) fn decode_request<M: Message + Default>(request: Request<Bytes>) -> Result<Request<M>, Status> {
    let (metadata, extensions, bytes) = request.into_parts();
    Ok(Request::from_parts(metadata, extensions, decode(bytes)?))
}

pub(crate) fn decode_response<M: Message + Default>(response: Response<Bytes>) -> Result<Response<M>, Status> {
    let (metadata, bytes, extensions) = response.into_parts();
    Ok(Response::from_parts(metadata, decode(bytes)?, extensions))
}

/// Decodes a message; the status of one that cannot be is that of tonic's codec for prost.
fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::internal(error.to_string()))
}
