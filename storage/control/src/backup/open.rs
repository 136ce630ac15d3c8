//! Opens repositories: the place of the object's spec, with the key of its Secret.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use corten_api::k8s_openapi::ByteString;
use corten_api::k8s_openapi::api::core::v1::Secret;
use corten_meta::time::now;
use corten_snapshots::{BACKUP_NAMESPACE, BucketPlace, RepositorySpec};
use corten_storage_backup::s3::{Bucket, Config, Credentials};
use corten_storage_backup::{Directory, Objects, Owner, Repository};

use super::Failure;
use crate::world::World;

/// The keys of the Secret: one of a passphrase and random bytes; and the credentials of a bucket.
const PASSPHRASE: &str = "passphrase";
const KEY: &str = "key";
const ACCESS_KEY: &str = "accessKey";
const SECRET_KEY: &str = "secretKey";
const SESSION_TOKEN: &str = "sessionToken";

/// The id of this process.
static PROCESS: LazyLock<String> = LazyLock::new(|| format!("{}-{}", std::process::id(), now()));

/// Opens the repository of a spec; makes it where nothing is.
pub async fn open(world: &World, spec: &RepositorySpec) -> Result<Repository, Failure> {
    let name = &spec.secret_name;
    let secret: Secret = match world.client.get(BACKUP_NAMESPACE, name).await {
        Err(error) if error.is_not_found() => {
            let message = format!("the Secret {name} does not exist in the namespace {BACKUP_NAMESPACE}");
            return Err(Failure::new("SecretNotFound", message));
        }
        read => read?,
    };
    let key = key(&secret)?;
    let objects = objects(spec, &secret, &world.options.roots)?;
    let node = world.options.node.clone().unwrap_or_default();
    let owner = Owner { node, process: PROCESS.clone() };
    Ok(Repository::open(objects, &key, Arc::new(now), owner).await?)
}

fn value<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
    Some(bytes.as_slice())
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let text = std::str::from_utf8(value(secret, key)?).ok()?;
    Some(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Returns the key that seals the repository.
fn key(secret: &Secret) -> Result<corten_storage_backup::Secret, Failure> {
    let made = match (text(secret, PASSPHRASE), value(secret, KEY)) {
        (Some(passphrase), None) => corten_storage_backup::Secret::passphrase(&passphrase),
        (None, Some(bytes)) => corten_storage_backup::Secret::key_file(bytes.to_vec()),
        _ => {
            let message = format!("the Secret must have exactly one of the keys {PASSPHRASE} and {KEY}");
            return Err(Failure::new("InvalidSecret", message));
        }
    };
    made.map_err(|error| Failure::new("InvalidSecret", error.to_string()))
}

fn objects(spec: &RepositorySpec, secret: &Secret, roots: &str) -> Result<Arc<dyn Objects>, Failure> {
    if let Some(directory) = &spec.directory {
        return Ok(Arc::new(Directory::open(Path::new(&directory.path))?));
    }
    match &spec.s3 {
        Some(place) => Ok(Arc::new(bucket(place, secret, roots)?)),
        None => Err(Failure::new("Invalid", "the repository has neither a directory nor a bucket")),
    }
}

fn bucket(place: &BucketPlace, secret: &Secret, roots: &str) -> Result<Bucket, Failure> {
    let (Some(access_key), Some(secret_key)) = (text(secret, ACCESS_KEY), text(secret, SECRET_KEY)) else {
        let message = format!("the Secret must have the keys {ACCESS_KEY} and {SECRET_KEY} for a bucket");
        return Err(Failure::new("InvalidSecret", message));
    };
    let config = Config {
        endpoint: place.endpoint.clone(),
        region: place.region.clone(),
        bucket: place.bucket.clone(),
        prefix: place.prefix.clone(),
        credentials: Credentials { access_key, secret_key, session_token: text(secret, SESSION_TOKEN) },
        roots: roots.to_owned(),
    };
    Bucket::new(config).map_err(|error| Failure::new("Invalid", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(keys: &[(&str, &str)]) -> Secret {
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()));
        Secret { data: Some(keys.iter().map(entry).collect()), ..Secret::default() }
    }

    #[test]
    fn a_secret_has_one_key_and_credentials_for_a_bucket() {
        assert!(key(&secret(&[("passphrase", "correct horse\n")])).is_ok());
        for wrong in [&[][..], &[("passphrase", "short")], &[("passphrase", "correct horse"), ("key", "x")]] {
            assert_eq!(key(&secret(wrong)).unwrap_err().reason, "InvalidSecret");
        }
        let place = BucketPlace { endpoint: "http://127.0.0.1:1".to_owned(), ..BucketPlace::default() };
        assert!(bucket(&place, &secret(&[("accessKey", "a"), ("secretKey", "s")]), "").is_ok());
        let missing = bucket(&place, &secret(&[("accessKey", "a")]), "").unwrap_err();
        assert!(missing.message.contains("secretKey"), "{missing:?}");
    }
}
