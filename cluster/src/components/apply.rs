//! Bringing an object to the state that is wanted.

use corten_api::Typed;
use corten_client::{Client, Error, Patch};
use corten_meta::Value;

/// Patches what differs, or creates the object where there is none.
pub async fn apply<K: Typed>(client: &Client, namespace: &str, name: &str, wanted: Value) -> Result<(), Error> {
    match client.patch::<K>(namespace, name, &Patch::Merge(wanted.clone()), None).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => client.create(&K::from_value(wanted)?).await.map(|_| ()),
        Err(error) => Err(error),
    }
}
