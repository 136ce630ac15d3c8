//! The secrets and the places of backups, from flags and the environment.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use corten_backup::s3::{Bucket, Config, Credentials};
use corten_backup::{Secret, Target, target};

use crate::backup_cli::{S3Options, SecretOptions};

/// The variable of the passphrase.
const PASSPHRASE: &str = "CORTEN_BACKUP_PASSPHRASE";
const MOST_SECRET_BYTES: u64 = 64 << 10;

/// Reads the secret that the flags or the environment name.
pub fn secret(options: &SecretOptions) -> Result<Secret> {
    let read = |path: &Path| {
        let failed = || format!("cannot read {}", path.display());
        let bytes = std::fs::metadata(path).with_context(failed)?.len();
        ensure!(bytes <= MOST_SECRET_BYTES, "{} is too large for a secret", path.display());
        std::fs::read(path).with_context(failed)
    };
    if let Some(path) = &options.key_file {
        return Secret::key_file(read(path)?).with_context(|| path.display().to_string());
    }
    let text = match &options.passphrase_file {
        Some(path) => String::from_utf8(read(path)?).with_context(|| format!("{} is no text", path.display()))?,
        None => match std::env::var(PASSPHRASE) {
            Ok(text) => text,
            Err(_) => bail!("a backup is sealed: name --passphrase-file or --key-file, or set {PASSPHRASE}"),
        },
    };
    Ok(Secret::passphrase(&text)?)
}

/// A backup's name, and where it is.
pub struct Place {
    pub target: Target,
    pub name: String,
}

/// Returns the place of one backup: a file, or an object of a bucket, which goes through `scratch`.
pub fn place(path: &Path, options: &S3Options, scratch: &Path) -> Result<Place> {
    if !target::is_bucket(path) {
        let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = name.to_str().with_context(|| format!("{} is no text", path.display()))?;
        return Ok(Place { target: Target::Directory(parent.to_owned()), name: name.to_owned() });
    }
    let text = path.to_str().unwrap_or_default();
    let (parent, name) = text.rsplit_once('/').unwrap_or_default();
    ensure!(!name.is_empty() && parent != "s3:/", "{text} names no object: s3://BUCKET/NAME");
    Ok(Place { target: directory(Path::new(parent), options, scratch)?, name: name.to_owned() })
}

/// Returns the place of many backups: a directory, or s3://BUCKET/PREFIX.
pub fn directory(path: &Path, options: &S3Options, scratch: &Path) -> Result<Target> {
    if !target::is_bucket(path) {
        return Ok(Target::Directory(path.to_owned()));
    }
    let text = path.to_str().unwrap_or_default();
    let (bucket, prefix) = target::parse_bucket(text).with_context(|| format!("{text} is not s3://BUCKET/PREFIX"))?;
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let region = options.s3_region.clone().or_else(|| variable("AWS_REGION"));
    let region = region.or_else(|| variable("AWS_DEFAULT_REGION")).unwrap_or_else(|| "us-east-1".to_owned());
    let endpoint = options.s3_endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL_S3"));
    let endpoint = endpoint.or_else(|| variable("AWS_ENDPOINT_URL"));
    let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let config = Config {
        endpoint,
        region,
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        credentials: credentials(options, variable)?,
        roots: crate::files::trusted_roots(),
    };
    Ok(Target::Bucket { bucket: Box::new(Bucket::new(config)?), scratch: scratch.to_owned() })
}

fn credentials(options: &S3Options, variable: impl Fn(&str) -> Option<String>) -> Result<Credentials> {
    let file = options.s3_credentials_file.clone();
    let named = file.or_else(|| variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from));
    if let (Some(access_key), Some(secret_key), None) =
        (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), &options.s3_credentials_file)
    {
        return Ok(Credentials { access_key, secret_key, session_token: variable("AWS_SESSION_TOKEN") });
    }
    let path = named.context(
        "S3 needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name --s3-credentials-file",
    )?;
    let text = crate::files::read(&path)?;
    Credentials::parse(&text, "default")
        .with_context(|| format!("{} has no complete profile \"default\"", path.display()))
}

/// A backup as a local file; a downloaded one is removed with this value.
pub struct Local {
    pub path: PathBuf,
    is_downloaded: bool,
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.is_downloaded {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns a backup as a local file; one of a bucket is downloaded into `scratch`.
pub async fn local_copy(path: &Path, options: &S3Options, scratch: &Path) -> Result<Local> {
    let place = place(path, options, scratch)?;
    let Target::Bucket { bucket, .. } = &place.target else {
        return Ok(Local { path: path.to_owned(), is_downloaded: false });
    };
    let local = Local { path: scratch.join(format!("{}.download", std::process::id())), is_downloaded: true };
    let made = std::fs::File::options().write(true).create(true).truncate(true).open(&local.path);
    let made = made.with_context(|| format!("cannot write {}", local.path.display()))?;
    bucket.download(&place.name, &mut tokio::fs::File::from_std(made)).await?;
    Ok(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p");
        std::fs::write(&path, "correct horse\n").unwrap();
        let options = SecretOptions { passphrase_file: Some(path.clone()), key_file: None };
        assert!(matches!(secret(&options).unwrap(), Secret::Passphrase(text) if text == "correct horse"));
        let short = secret(&SecretOptions { passphrase_file: None, key_file: Some(path) }).unwrap_err();
        assert!(format!("{short:#}").contains("a key file has 32"), "{short:#}");
    }

    #[test]
    fn files_and_objects_have_a_place_and_a_name() {
        let options = S3Options::default();
        let place = |text: &str| super::place(Path::new(text), &options, Path::new("/"));
        let local = place("dir/b.corten").unwrap();
        assert!(matches!(local.target, Target::Directory(directory) if directory == Path::new("dir")));
        assert_eq!(local.name, "b.corten");
        assert!(place("s3://bucket").err().unwrap().to_string().contains("names no object"));
        assert!(place("s3://bucket/").err().unwrap().to_string().contains("names no object"));
    }
}
