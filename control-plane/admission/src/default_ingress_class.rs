//! DefaultIngressClass: an ingress without a class gets the default one.

use corten_meta::Status;
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::plugin::Plugin;

const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
const OLD_CLASS: &str = "kubernetes.io/ingress.class";

pub struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !a.creates("networking.k8s.io", "ingresses") {
                return Ok(());
            }
            let named = a.object.pointer("/spec/ingressClassName").is_some_and(|c| !c.is_null())
                || corten_meta::annotations(&a.object).contains_key(OLD_CLASS);
            if named {
                return Ok(());
            }
            let classes = a.target.core.objects.cached_list("networking.k8s.io", "ingressclasses", "");
            let mut defaults: Vec<_> = classes
                .into_iter()
                .filter(|c| corten_meta::annotations(&c.value()).get(IS_DEFAULT).is_some_and(|v| v == "true"))
                .collect();
            defaults.sort_by(|a, b| {
                b.header
                    .creation_timestamp
                    .cmp(&a.header.creation_timestamp)
                    .then_with(|| a.header.name.cmp(&b.header.name))
            });
            if let Some(class) = defaults.first() {
                corten_meta::set(&mut a.object, "/spec/ingressClassName", class.header.name.clone().into());
            }
            Ok(())
        })
    }
}
