//! The credentials of AWS by every way: environment, file, web identity, and the instance's metadata service.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod http;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use corten_cloud::provider::{Error, NodeReference};
use corten_cloud::providers::{Setup, open};

use http::{Answer, Request, serve};

/// Answers as EC2, STS and the metadata service; EC2 notes the access key of each call.
fn cloud(seen: Arc<Mutex<Vec<String>>>) -> std::net::SocketAddr {
    let text = |status: u16, body: &str| Some(Answer { status, body: body.to_owned() });
    serve(move |request: &Request| {
        let credentials = |tag: &str, expiration: &str| match tag {
            "json" => {
                format!(r#"{{"AccessKeyId":"ROLE","SecretAccessKey":"s","Token":"t","Expiration":"{expiration}"}}"#)
            }
            _ => format!(
                "<R><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>WEB</AccessKeyId><SecretAccessKey>s\
                 </SecretAccessKey><SessionToken>t</SessionToken><Expiration>{expiration}</Expiration></Credentials>\
                 </AssumeRoleWithWebIdentityResult></R>"
            ),
        };
        let has_session = request.head.contains("x-aws-ec2-metadata-token: session\n");
        match (request.method.as_str(), request.target.as_str()) {
            ("PUT", "/latest/api/token") => text(200, "session"),
            ("GET", _) if !has_session => text(401, ""),
            ("GET", "/latest/meta-data/placement/region") => text(200, "eu-central-1"),
            ("GET", "/latest/meta-data/iam/security-credentials/") => text(200, "role\n"),
            // They expire within the time in which they are renewed, so each call reads them again.
            ("GET", "/latest/meta-data/iam/security-credentials/role") => {
                text(200, &credentials("json", "2020-01-01T00:00:00Z"))
            }
            ("POST", _) if request.body.starts_with("Action=AssumeRoleWithWebIdentity&") => {
                match request.body.contains("WebIdentityToken=good") {
                    true => text(200, &credentials("xml", "2999-01-01T00:00:00Z")),
                    false => text(400, "<E><Error><Code>InvalidIdentityToken</Code><Message>no</Message></Error></E>"),
                }
            }
            ("POST", _) => {
                let key = request.head.split("Credential=").nth(1).and_then(|rest| rest.split('/').next());
                seen.lock().unwrap().push(key.unwrap_or_default().to_owned());
                text(200, "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>")
            }
            _ => text(404, ""),
        }
    })
}

/// Asks for an instance with these variables; returns the access keys that EC2 saw.
async fn keys(variables: &[(&str, &str)]) -> Result<Vec<String>, Error> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let url = format!("http://{}", cloud(Arc::clone(&seen)));
    let mut all: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    all.insert("AWS_ENDPOINT_URL".to_owned(), url.clone());
    all.insert("AWS_EC2_METADATA_SERVICE_ENDPOINT".to_owned(), url);
    let variable = Box::new(move |name: &str| all.get(name).cloned());
    let setup = Setup { config: String::new(), cluster: "c".to_owned(), roots: String::new(), variable };
    let provider = open("aws", &setup).await.map_err(Error::Invalid)?;
    let node = NodeReference { name: "n".to_owned(), provider_id: "aws:///i-1".to_owned() };
    assert_eq!(provider.instance(&node).await?, None);
    Ok(seen.lock().unwrap().clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_come_from_the_first_source_that_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    std::fs::write(
        &file,
        "[default]\naws_access_key_id=D\naws_secret_access_key=s\n\
                           [other]\naws_access_key_id=O\naws_secret_access_key=s\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "good\n").unwrap();
    let token = token.to_str().unwrap();
    let environment = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "s")];
    assert_eq!(keys(&environment).await.unwrap(), ["E"]);
    assert_eq!(keys(&[("AWS_SHARED_CREDENTIALS_FILE", file)]).await.unwrap(), ["D"]);
    let profile = [("AWS_SHARED_CREDENTIALS_FILE", file), ("AWS_PROFILE", "other")];
    assert_eq!(keys(&profile).await.unwrap(), ["O"]);
    let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", token), ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")];
    assert_eq!(keys(&web).await.unwrap(), ["WEB"]);
    assert_eq!(keys(&[]).await.unwrap(), ["ROLE"], "of the instance, with its region");
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_credentials_are_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "bad").unwrap();
    let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()), ("AWS_ROLE_ARN", "r")];
    let error = keys(&web).await.unwrap_err().to_string();
    assert!(error.contains("STS refuses the web identity for r") && error.contains("InvalidIdentityToken"), "{error}");
    let missing = [("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")];
    let error = keys(&missing).await.unwrap_err().to_string();
    assert!(error.contains("cannot read /nowhere/credentials"), "{error}");
}
