//! Applies an object: brings it to the desired state.

use corten_api::Typed;
use corten_client::{Client, Error, Patch};
use corten_meta::Value;

/// Patches the differences, or creates the object if it does not exist.
pub async fn apply<K: Typed>(client: &Client, namespace: &str, name: &str, wanted: Value) -> Result<(), Error> {
    match client.patch::<K>(namespace, name, &Patch::Merge(wanted.clone()), None).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => client.create(&K::from_value(wanted)?).await.map(|_| ()),
        Err(error) => Err(error),
    }
}
