//! A pod's resolver configuration from its dnsPolicy and dnsConfig. Pure.

use corten_api::k8s_openapi::api::core::v1::{Pod, PodDNSConfig};
use corten_cri::v1 as cri;

use crate::config::{Config, HostResolver};
use crate::pod::spec;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// Returns the content of the pod's resolv.conf for the runtime.
pub fn dns(config: &Config, pod: &Pod) -> cri::DnsConfig {
    let mut dns = by_policy(config, pod);
    if let Some(own) = &spec::spec(pod).dns_config {
        merge(&mut dns, own);
    }
    dns.servers.truncate(MAX_SERVERS);
    dns.searches.truncate(MAX_SEARCHES);
    dns
}

fn by_policy(config: &Config, pod: &Pod) -> cri::DnsConfig {
    match spec::spec(pod).dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "None" => cri::DnsConfig::default(),
        "Default" => of_host(&config.host_resolver),
        "ClusterFirst" if spec::host_network(pod) => of_host(&config.host_resolver),
        _ if config.cluster_dns.is_empty() => of_host(&config.host_resolver),
        _ => of_cluster(config, spec::namespace(pod)),
    }
}

fn of_host(host: &HostResolver) -> cri::DnsConfig {
    cri::DnsConfig { servers: host.servers.clone(), searches: host.searches.clone(), options: host.options.clone() }
}

fn of_cluster(config: &Config, namespace: &str) -> cri::DnsConfig {
    let domain = &config.cluster_domain;
    let mut searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
    for search in &config.host_resolver.searches {
        if !searches.contains(search) {
            searches.push(search.clone());
        }
    }
    cri::DnsConfig { servers: config.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
}

/// Adds the pod's own servers and searches; its options replace those with the same name.
fn merge(dns: &mut cri::DnsConfig, own: &PodDNSConfig) {
    for (into, from) in [(&mut dns.servers, &own.nameservers), (&mut dns.searches, &own.searches)] {
        for item in from.iter().flatten() {
            if !into.contains(item) {
                into.push(item.clone());
            }
        }
    }
    for option in own.options.iter().flatten() {
        let name = option.name.clone().unwrap_or_default();
        dns.options.retain(|present| present.split(':').next() != Some(&name));
        dns.options.push(match option.value.as_deref().filter(|value| !value.is_empty()) {
            Some(value) => format!("{name}:{value}"),
            None => name,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn config() -> Config {
        Config {
            cluster_dns: vec!["10.96.0.10".into()],
            host_resolver: HostResolver {
                servers: vec!["192.0.2.53".into()],
                searches: vec!["example.net".into()],
                options: vec![],
            },
            ..Config::default()
        }
    }

    #[test]
    fn policies_choose_servers_and_searches() {
        for (pod, servers, searches, options) in [
            (
                "{}",
                vec!["10.96.0.10"],
                vec!["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.net"],
                vec!["ndots:5"],
            ),
            (r#"{"dnsPolicy":"Default"}"#, vec!["192.0.2.53"], vec!["example.net"], vec![]),
            (r#"{"hostNetwork":true,"dnsPolicy":"ClusterFirst"}"#, vec!["192.0.2.53"], vec!["example.net"], vec![]),
            (
                r#"{"hostNetwork":true,"dnsPolicy":"ClusterFirstWithHostNet"}"#,
                vec!["10.96.0.10"],
                vec!["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.net"],
                vec!["ndots:5"],
            ),
            (
                r#"{"dnsPolicy":"None","dnsConfig":{"nameservers":["1.1.1.1"],"searches":["a.b"],"options":[{"name":"ndots","value":"2"},{"name":"edns0"}]}}"#,
                vec!["1.1.1.1"],
                vec!["a.b"],
                vec!["ndots:2", "edns0"],
            ),
        ] {
            let result = dns(&config(), &fixtures::pod(pod));
            assert_eq!(
                (result.servers, result.searches, result.options),
                (own(servers), own(searches), own(options)),
                "{pod}"
            );
        }
    }

    fn own(list: Vec<&str>) -> Vec<String> {
        list.into_iter().map(str::to_owned).collect()
    }
}
