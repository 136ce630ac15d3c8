//! The documents of the paths that belong to no group version: discovery, the version, and the keys of the server's
//! tokens.

use corten_meta::Value;
use serde_json::{Map, json};

use super::paths::{META, camel, capital, content, reference};
use crate::emulation::MinorVersion;
use crate::registry::kinds_at;

/// Returns every such path, relative to `/openapi/v3/`.
pub fn root_paths(version: MinorVersion) -> Vec<String> {
    let mut paths: Vec<String> =
        [".well-known/openid-configuration", "api", "apis", "openid/v1/jwks", "version"].map(str::to_string).to_vec();
    for kind in kinds_at(version).iter().filter(|kind| !kind.group.is_empty()) {
        let path = format!("apis/{}", kind.group);
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// Returns the paths of the document at one of [`root_paths`]. Each has one operation.
pub(super) fn root_document_paths(root: &str) -> Map<String, Value> {
    const MEDIA: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
    let meta = |name: &str| reference(&format!("{META}.{name}"));
    let text = json!({"type": "string"});
    let (id, tag, description, schema, media): (String, String, &str, Value, &[&str]) = match root {
        "api" => ("getCoreAPIVersions".into(), "core".into(), "get available API versions", meta("APIVersions"), MEDIA),
        "apis" => ("getAPIVersions".into(), "apis".into(), "get available API versions", meta("APIGroupList"), MEDIA),
        "version" => (
            "getCodeVersion".into(),
            "version".into(),
            "get the version information for this server",
            reference("io.k8s.apimachinery.pkg.version.Info"),
            &["application/json"],
        ),
        "openid/v1/jwks" => (
            "getServiceAccountIssuerOpenIDKeyset".into(),
            "openid".into(),
            "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
            text,
            &["application/jwk-set+json"],
        ),
        ".well-known/openid-configuration" => (
            "getServiceAccountIssuerOpenIDConfiguration".into(),
            "WellKnown".into(),
            "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
            text,
            &["application/json"],
        ),
        group => {
            let name = camel(group.trim_start_matches("apis/"));
            let id = format!("get{}APIGroup", capital(&name));
            (id, name, "get information of a group", meta("APIGroup"), MEDIA)
        }
    };
    let operation = json!({
        "description": description,
        "operationId": id,
        "tags": [tag],
        "responses": {
            "200": {"description": "OK", "content": content(&schema, media)},
            "401": {"description": "Unauthorized"},
        },
    });
    Map::from_iter([(format!("/{root}/"), json!({ "get": operation }))])
}
