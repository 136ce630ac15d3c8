//! DefaultStorageClass: a claim without a class gets the default one, the newest if there are several.

use corten_meta::Status;
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::plugin::Plugin;

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub struct DefaultStorageClass;

impl Plugin for DefaultStorageClass {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !a.creates("", "persistentvolumeclaims") {
                return Ok(());
            }
            let named = a.object.pointer("/spec/storageClassName").is_some_and(|c| !c.is_null())
                || corten_meta::annotations(&a.object).contains_key(BETA_CLASS);
            if named {
                return Ok(());
            }
            let classes = a.target.core.objects.cached_list("storage.k8s.io", "storageclasses", "");
            let defaults = classes
                .into_iter()
                .filter(|class| corten_meta::annotations(&class.value()).get(IS_DEFAULT).is_some_and(|v| v == "true"));
            let newest = defaults.max_by(|a, b| {
                let key = |o: &corten_meta::Object| o.header.creation_timestamp;
                key(a).cmp(&key(b)).then_with(|| b.header.name.cmp(&a.header.name))
            });
            if let Some(class) = newest {
                corten_meta::set(&mut a.object, "/spec/storageClassName", class.header.name.clone().into());
            }
            Ok(())
        })
    }
}
