//! The client of the KMS plugin API, version 2, over a unix socket: three calls, whose few messages are declared here.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(string, tag = "2")]
    pub healthz: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub annotations: BTreeMap<String, Vec<u8>>,
}

pub const STATUS: &str = "/v2.KeyManagementService/Status";
pub const ENCRYPT: &str = "/v2.KeyManagementService/Encrypt";
pub const DECRYPT: &str = "/v2.KeyManagementService/Decrypt";

/// The connection to a plugin. It is opened at the first call, and again when the plugin restarts.
pub struct Plugin {
    channel: Channel,
    timeout: Duration,
}

impl Plugin {
    /// Makes a client. Must be called inside a runtime.
    pub fn new(socket: &Path, timeout: Duration) -> Result<Plugin, String> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(|e| e.to_string())?;
        Ok(Plugin { channel: endpoint.connect_lazy(), timeout })
    }

    pub async fn call<Request, Response>(&self, path: &'static str, request: Request) -> Result<Response, String>
    where
        Request: Message + Default + 'static,
        Response: Message + Default + 'static,
    {
        let call = async {
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.map_err(|e| e.to_string())?;
            let codec = ProstCodec::<Request, Response>::default();
            let answer = client.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
            let failed = |s: tonic::Status| format!("rpc error: code = {:?} desc = {}", s.code(), s.message());
            answer.map(tonic::Response::into_inner).map_err(failed)
        };
        let late = || "rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned();
        tokio::time::timeout(self.timeout, call).await.unwrap_or_else(|_| Err(late()))
    }
}
