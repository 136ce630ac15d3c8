//! The gRPC health protocol, one unary call: `grpc.health.v1.Health/Check`. Its two messages have one field
//! each, so they are written and read here rather than generated.

use std::time::Duration;

use bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;

use super::Outcome;

const SERVING: u64 = 1;
const PATH: &str = "/grpc.health.v1.Health/Check";

pub async fn check(host: &str, port: i32, service: &str, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, call(host, port, service)).await {
        Ok(outcome) => outcome,
        Err(_) => Outcome::Failure(format!(
            "timeout: failed to connect service {:?} within {}s: context deadline exceeded",
            format!("{host}:{port}"),
            timeout.as_secs()
        )),
    }
}

async fn call(host: &str, port: i32, service: &str) -> Outcome {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let endpoint = match Endpoint::from_shared(format!("http://{host}:{port}")) {
        Ok(endpoint) => endpoint,
        Err(error) => return Outcome::Error(error.to_string()),
    };
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => return Outcome::Failure(format!("failed to connect service: {error}")),
    };
    let mut client = tonic::client::Grpc::new(channel);
    if let Err(error) = client.ready().await {
        return Outcome::Failure(format!("failed to connect service: {error}"));
    }
    let request = tonic::Request::new(service.to_owned());
    match client.unary(request, http::uri::PathAndQuery::from_static(PATH), HealthCodec).await {
        Ok(response) if response.get_ref() == &SERVING => Outcome::Success,
        Ok(response) => Outcome::Failure(format!("service unhealthy (responded with {:?})", name(*response.get_ref()))),
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            Outcome::Failure("this server does not implement the grpc health protocol (grpc.health.v1.Health)".into())
        }
        Err(status) => Outcome::Failure(format!("rpc error: {}", status.message())),
    }
}

fn name(status: u64) -> &'static str {
    match status {
        1 => "SERVING",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    }
}

/// Encodes the service's name as field 1 and decodes the status of field 1.
#[derive(Clone, Copy, Default)]
struct HealthCodec;

impl Codec for HealthCodec {
    type Encode = String;
    type Decode = u64;
    type Encoder = HealthCodec;
    type Decoder = HealthCodec;

    fn encoder(&mut self) -> HealthCodec {
        HealthCodec
    }

    fn decoder(&mut self) -> HealthCodec {
        HealthCodec
    }
}

impl Encoder for HealthCodec {
    type Item = String;
    type Error = tonic::Status;

    fn encode(&mut self, service: String, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        if !service.is_empty() {
            buffer.put_u8(0x0a);
            put_varint(buffer, service.len() as u64);
            buffer.put_slice(service.as_bytes());
        }
        Ok(())
    }
}

impl Decoder for HealthCodec {
    type Item = u64;
    type Error = tonic::Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<u64>, tonic::Status> {
        let mut bytes = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut bytes);
        Ok(Some(status_of(&bytes)))
    }
}

fn put_varint(buffer: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        buffer.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    buffer.put_u8(value as u8);
}

/// Returns field 1 of the response; an absent field is 0, `UNKNOWN`.
fn status_of(bytes: &[u8]) -> u64 {
    match bytes {
        [0x08, status, ..] => u64::from(*status),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_field_one() {
        assert_eq!([status_of(&[8, 1]), status_of(&[8, 2]), status_of(&[])], [1, 2, 0]);
        let mut buffer = Vec::new();
        put_varint(&mut buffer, 300);
        assert_eq!(buffer, [0xac, 0x02]);
    }
}
