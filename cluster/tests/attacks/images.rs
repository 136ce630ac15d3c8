//! Images whose manifests, configurations, layers or archives were made to harm the node that unpacks them.
