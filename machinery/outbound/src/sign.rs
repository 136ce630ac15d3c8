//! AWS Signature Version 4: pure functions of a request, its time and the credentials.

use ring::{digest, hmac};

/// The identity that signs.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub access_key: String,
    pub secret_key: String,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Credentials({})", self.access_key)
    }
}

impl Credentials {
    /// Reads a profile of a credentials file, as AWS's tools write it. Lines before the first profile are those of
    /// `default`.
    pub fn parse(text: &str, wanted: &str) -> Option<Credentials> {
        let mut credentials = Credentials { access_key: String::new(), secret_key: String::new(), session_token: None };
        let mut is_wanted = wanted == "default";
        for line in text.lines().map(str::trim) {
            if let Some(profile) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                is_wanted = profile.trim() == wanted;
            }
            let Some((name, value)) = line.split_once('=').filter(|_| is_wanted && !line.starts_with('#')) else {
                continue;
            };
            let value = value.trim().to_owned();
            match name.trim() {
                "aws_access_key_id" => credentials.access_key = value,
                "aws_secret_access_key" => credentials.secret_key = value,
                "aws_session_token" => credentials.session_token = Some(value),
                _ => {}
            }
        }
        let is_complete = !credentials.access_key.is_empty() && !credentials.secret_key.is_empty();
        is_complete.then_some(credentials)
    }
}

/// A request to sign.
pub struct Unsigned<'a> {
    pub method: &'a str,
    pub host: &'a str,
    /// The path, encoded.
    pub path: &'a str,
    pub query: &'a [(&'a str, &'a str)],
    pub body_hash: &'a str,
    pub region: &'a str,
    pub service: &'a str,
    pub time: jiff::Timestamp,
}

/// The headers of a signed request beside `host`.
#[derive(Debug, PartialEq, Eq)]
pub struct Signed {
    pub headers: Vec<(&'static str, String)>,
}

/// Signs a request.
pub fn sign(request: &Unsigned<'_>, credentials: &Credentials) -> Signed {
    let stamp = request.time.strftime("%Y%m%dT%H%M%SZ").to_string();
    let day = stamp[..8].to_owned();
    let mut headers = vec![
        ("host", request.host.to_owned()),
        ("x-amz-content-sha256", request.body_hash.to_owned()),
        ("x-amz-date", stamp.clone()),
    ];
    if let Some(token) = &credentials.session_token {
        headers.push(("x-amz-security-token", token.clone()));
    }
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{}",
        request.method,
        request.path,
        canonical_query(request.query),
        request.body_hash
    );
    let scope = format!("{day}/{}/{}/aws4_request", request.region, request.service);
    let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let mut key = hash(format!("AWS4{}", credentials.secret_key).as_bytes(), day.as_bytes());
    for part in [request.region, request.service, "aws4_request"] {
        key = hash(&key, part.as_bytes());
    }
    let signature = hex(&hash(&key, text.as_bytes()));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        credentials.access_key
    );
    headers.remove(0);
    headers.push(("authorization", authorization));
    Signed { headers }
}

/// Returns the query as it is signed and sent: encoded, in order.
pub fn canonical_query(query: &[(&str, &str)]) -> String {
    let mut pairs: Vec<String> =
        query.iter().map(|(name, value)| format!("{}={}", encode(name, false), encode(value, false))).collect();
    pairs.sort_unstable();
    pairs.join("&")
}

/// Encodes a part of a URL; slashes of a path stay.
pub fn encode(text: &str, is_path: bool) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            b'/' if is_path => encoded.push('/'),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// Returns the SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hash(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), bytes).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request and the signature are an example of AWS's documentation ("GET Bucket Lifecycle").
    #[test]
    fn a_documented_request_gets_its_documented_signature() {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            session_token: None,
        };
        let request = Unsigned {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/",
            query: &[("lifecycle", "")],
            body_hash: &sha256(b""),
            region: "us-east-1",
            service: "s3",
            time: "2013-05-24T00:00:00Z".parse().unwrap(),
        };
        let signed = sign(&request, &credentials);
        let authorization = &signed.headers.last().unwrap().1;
        let expected = "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        assert!(authorization.ends_with(expected), "{authorization}");
    }

    /// The requests and the headers are those of botocore's own signer.
    #[test]
    fn requests_get_the_signatures_of_botocore() {
        let table: serde_json::Value = serde_json::from_str(include_str!("../tests/signatures.json")).unwrap();
        for case in table.as_array().unwrap() {
            let text = |name: &str| case[name].as_str().unwrap();
            let credentials = Credentials {
                access_key: text("access_key").to_owned(),
                secret_key: text("secret_key").to_owned(),
                session_token: case["session_token"].as_str().map(str::to_owned),
            };
            let query: Vec<(&str, &str)> = case["query"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
                .collect();
            let request = Unsigned {
                method: text("method"),
                host: text("host"),
                path: text("path"),
                query: &query,
                body_hash: &sha256(text("body").as_bytes()),
                region: text("region"),
                service: text("service"),
                time: text("time").parse().unwrap(),
            };
            let signed = sign(&request, &credentials);
            assert_eq!(signed.headers.last().unwrap().1, text("authorization"), "{case}");
        }
    }

    #[test]
    fn names_are_encoded_as_aws_wants_them() {
        assert_eq!(encode("a b/ü+~", true), "a%20b/%C3%BC%2B~");
        assert_eq!(encode("a/b", false), "a%2Fb");
        assert_eq!(canonical_query(&[("prefix", "a/"), ("list-type", "2")]), "list-type=2&prefix=a%2F");
    }

    #[test]
    fn credentials_are_read_of_a_profile() {
        let text = "[other]\naws_access_key_id = no\n[default]\naws_access_key_id=A\naws_secret_access_key = s=1\n";
        let credentials = Credentials::parse(text, "default").unwrap();
        assert_eq!((credentials.access_key.as_str(), credentials.secret_key.as_str()), ("A", "s=1"));
        assert_eq!(format!("{credentials:?}"), "Credentials(A)");
        assert_eq!(Credentials::parse("[default]\naws_access_key_id=A\n", "default"), None);
    }
}
