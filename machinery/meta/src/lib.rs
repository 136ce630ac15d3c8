//! Object metadata, names, selectors, quantities, patches, Status, JSON and YAML codecs
