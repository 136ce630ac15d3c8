//! One API server as a kubeconfig names it: every request has a connection of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use testkit_machine::requests::Request;

pub use super::answer::Answer;

/// No answer takes longer; watches are asked for with a time of their own.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server and who asks it.
pub struct Server {
    /// Host and port.
    authority: String,
    token: Option<String>,
    tls: Arc<ClientConfig>,
}

impl Server {
    /// Reads a kubeconfig file by kubectl, which knows every form of it.
    pub fn from_kubeconfig(kubectl: &Path, file: &Path) -> Result<Server> {
        let output = Command::new(kubectl)
            .args(["config", "view", "--raw", "--flatten", "--minify", "-o", "json", "--kubeconfig"])
            .arg(file)
            .output()
            .context("kubectl cannot be run")?;
        ensure!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
        Server::from_config(&serde_json::from_slice(&output.stdout)?).with_context(|| file.display().to_string())
    }

    fn from_config(config: &Value) -> Result<Server> {
        let cluster = &config["clusters"][0]["cluster"];
        let user = &config["users"][0]["user"];
        let url = cluster["server"].as_str().context("no server is named")?;
        let authority = url.strip_prefix("https://").context("the server is not asked over TLS")?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&decoded(&cluster["certificate-authority-data"])?) {
            roots.add(certificate.context("the authority is no certificate")?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = tls.with_root_certificates(roots);
        let tls = match user["client-certificate-data"].is_string() {
            true => {
                let pem = decoded(&user["client-certificate-data"])?;
                let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>()?;
                tls.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&decoded(&user["client-key-data"])?)?)?
            }
            false => tls.with_no_client_auth(),
        };
        let token = user["token"].as_str().map(str::to_owned);
        Ok(Server { authority: authority.trim_end_matches('/').to_owned(), token, tls: Arc::new(tls) })
    }

    /// Puts a request and reads the answer to its end.
    pub fn ask(&self, request: &Request) -> Result<Answer> {
        let host = self.authority.rsplit_once(':').map_or(self.authority.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        let socket = TcpStream::connect(&self.authority).with_context(|| self.authority.clone())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(ClientConnection::new(self.tls.clone(), name)?, socket);
        stream.write_all(&self.encode(request))?;
        stream.flush()?;
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            // Some servers end the connection without saying so in TLS; the answer tells whether it is whole.
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error.into()),
            _ => Answer::parse(&bytes),
        }
    }

    fn encode(&self, request: &Request) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.path, self.authority);
        head.push_str("Connection: close\r\nUser-Agent: compare\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        for header in &request.headers {
            head.push_str(&format!("{}: {}\r\n", header.name, header.value));
        }
        if !request.body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", request.body.len()));
        }
        [head.as_bytes(), b"\r\n", request.body.as_bytes()].concat()
    }
}

fn decoded(value: &Value) -> Result<Vec<u8>> {
    Ok(STANDARD.decode(value.as_str().context("a certificate or key is missing")?)?)
}
