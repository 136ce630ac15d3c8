// The menu: resources in the groups that people think in; every other one by its API group.

const KNOWN = [
  ['Workloads', ['pods', 'deployments.apps', 'statefulsets.apps', 'daemonsets.apps', 'replicasets.apps', 'jobs.batch', 'cronjobs.batch', 'horizontalpodautoscalers.autoscaling', 'poddisruptionbudgets.policy']],
  ['Network', ['services', 'ingresses.networking.k8s.io', 'gateways.gateway.networking.k8s.io', 'httproutes.gateway.networking.k8s.io', 'endpointslices.discovery.k8s.io', 'networkpolicies.networking.k8s.io', 'ingressclasses.networking.k8s.io']],
  ['Configuration', ['configmaps', 'secrets', 'resourcequotas', 'limitranges', 'priorityclasses.scheduling.k8s.io']],
  ['Storage', ['persistentvolumeclaims', 'persistentvolumes', 'storageclasses.storage.k8s.io', 'volumesnapshots.snapshot.storage.k8s.io', 'volumeattachments.storage.k8s.io', 'csidrivers.storage.k8s.io']],
  ['Access', ['serviceaccounts', 'roles.rbac.authorization.k8s.io', 'rolebindings.rbac.authorization.k8s.io', 'clusterroles.rbac.authorization.k8s.io', 'clusterrolebindings.rbac.authorization.k8s.io']],
  ['Cluster', ['nodes', 'namespaces', 'events', 'leases.coordination.k8s.io', 'customresourcedefinitions.apiextensions.k8s.io', 'apiservices.apiregistration.k8s.io', 'validatingwebhookconfigurations.admissionregistration.k8s.io', 'mutatingwebhookconfigurations.admissionregistration.k8s.io']],
];

/** Lists that are no objects of their own, or that another one shows better. */
const HIDDEN = new Set(['events.events.k8s.io', 'componentstatuses', 'pods.metrics.k8s.io', 'nodes.metrics.k8s.io', 'endpoints', 'bindings']);

/**
 * Returns the groups of the menu.
 * @param {import('./api.js').Resource[]} resources
 */
export function groups(resources) {
  const byId = new Map(resources.map((one) => [one.id, one]));
  const taken = new Set(HIDDEN);
  const result = KNOWN.map(([name, ids]) => {
    const found = ids.map((id) => byId.get(id)).filter((one) => one !== undefined);
    for (const one of found) taken.add(one.id);
    return { name, isOpen: name === 'Workloads' || name === 'Network', resources: found.map(entry) };
  });
  const rest = resources.filter((one) => !taken.has(one.id));
  const isBuiltIn = (one) => one.group === '' || !one.group.includes('.') || one.group.endsWith('.k8s.io');
  result.push({ name: 'Custom resources', isOpen: false, resources: rest.filter((one) => !isBuiltIn(one)).map(entry) });
  result.push({ name: 'Other', isOpen: false, resources: rest.filter(isBuiltIn).map(entry) });
  return result.filter((group) => group.resources.length);
}

function entry(resource) {
  const label = resource.kind.replace(/([a-z])([A-Z])/g, '$1 $2');
  const plural = /s$/.test(resource.plural) ? pluralOf(label) : label;
  return { id: resource.id, label: plural };
}

function pluralOf(label) {
  if (/(s|x|ch)$/.test(label)) return label.endsWith('ss') || !label.endsWith('s') ? `${label}es` : label;
  return /[^aeo]y$/.test(label) ? `${label.slice(0, -1)}ies` : `${label}s`;
}
