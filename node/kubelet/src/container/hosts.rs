//! The pod's hostname and its `/etc/hosts`, which the kubelet writes and mounts into every container that does not
//! mount its own.

use std::path::{Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::Pod;

use crate::error::{Error, Result};
use crate::pod::spec;

const HOSTNAME_MAX: usize = 63;
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const FIXED_ENTRIES: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// Returns the hostname and the domain of a pod; the domain is empty without a subdomain.
pub fn hostname_and_domain(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = spec::spec(pod);
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !name.is_empty()) {
        return (truncate(name), String::new());
    }
    let hostname = spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or_else(|| spec::name(pod));
    let domain = match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(subdomain) => format!("{subdomain}.{}.svc.{cluster_domain}", spec::namespace(pod)),
        None => String::new(),
    };
    (truncate(hostname), domain)
}

fn truncate(hostname: &str) -> String {
    match hostname.get(..HOSTNAME_MAX) {
        Some(start) if hostname.len() > HOSTNAME_MAX => start.trim_end_matches(['-', '.']).to_owned(),
        _ => hostname.to_owned(),
    }
}

/// Returns the hostname of the sandbox: the short name, or the full name with `setHostnameAsFQDN`.
pub fn sandbox_hostname(pod: &Pod, cluster_domain: &str) -> String {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain);
    if spec::spec(pod).set_hostname_as_fqdn == Some(true) && !domain.is_empty() {
        return format!("{hostname}.{domain}");
    }
    hostname
}

/// Returns the content of the pod's hosts file. `node_hosts` is the node's own, which host network pods extend.
pub fn content(pod: &Pod, pod_ips: &[String], cluster_domain: &str, node_hosts: Option<&str>) -> String {
    let mut text = match node_hosts {
        Some(node_hosts) => format!("{HOST_NETWORK_HEADER}{node_hosts}"),
        None => {
            let (hostname, domain) = hostname_and_domain(pod, cluster_domain);
            let names = if domain.is_empty() { hostname } else { format!("{hostname}.{domain}\t{hostname}") };
            let own: String = pod_ips.iter().map(|ip| format!("{ip}\t{names}\n")).collect();
            format!("{HEADER}{FIXED_ENTRIES}{own}")
        }
    };
    let aliases = spec::spec(pod).host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            text.push_str(&format!("{}\t{}\n", alias.ip, alias.hostnames.as_deref().unwrap_or_default().join("\t")));
        }
    }
    text
}

/// Writes the pod's hosts file and returns its path.
pub fn write(pod: &Pod, pod_dir: &Path, pod_ips: &[String], cluster_domain: &str) -> Result<PathBuf> {
    let node_hosts = if spec::host_network(pod) {
        let path = Path::new("/etc/hosts");
        Some(std::fs::read_to_string(path).map_err(Error::file("read", path))?)
    } else {
        None
    };
    let path = pod_dir.join("etc-hosts");
    std::fs::create_dir_all(pod_dir).map_err(Error::file("create", pod_dir))?;
    std::fs::write(&path, content(pod, pod_ips, cluster_domain, node_hosts.as_deref()))
        .map_err(Error::file("write", &path))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn hosts_file_names_the_pod_and_its_aliases() {
        let pod = fixtures::pod(
            r#"{"hostname":"web-0","subdomain":"web","hostAliases":[{"ip":"1.2.3.4","hostnames":["a","b"]}]}"#,
        );
        let text = content(&pod, &["10.244.0.7".into()], "cluster.local", None);
        let tail =
            "10.244.0.7\tweb-0.web.ns.svc.cluster.local\tweb-0\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n";
        assert_eq!(text, format!("{HEADER}{FIXED_ENTRIES}{tail}"));
        let host = content(&pod, &[], "cluster.local", Some("127.0.0.1 x\n"));
        assert!(host.starts_with("# Kubernetes-managed hosts file (host network).\n127.0.0.1 x\n"));
    }

    #[test]
    fn long_names_are_cut_where_a_name_may_end() {
        let mut pod = fixtures::pod("{}");
        pod.metadata.name = Some(format!("{}-{}", "a".repeat(62), "b".repeat(20)));
        assert_eq!(hostname_and_domain(&pod, "cluster.local").0, "a".repeat(62));
    }
}
