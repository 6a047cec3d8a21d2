// Without a validator: it would be asked for a badge at another host.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, tagsSorter: "alpha" });
