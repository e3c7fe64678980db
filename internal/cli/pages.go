package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"sluice/internal/apiclient"
)

// pageSize is how many entries are asked for at once: the most that the API gives.
const pageSize = "200"

// pages calls each with the entries of a list under name, page by page, to its end.
// It returns one answer that holds them all, in the API's form, where whole is true;
// else nothing is kept of a page.
func pages(ctx context.Context, c *apiclient.Client, path, name string, query url.Values, whole bool, each func(json.RawMessage) error) (json.RawMessage, error) {
	entries := []json.RawMessage{}
	all := map[string]any{}
	ask := url.Values{"limit": {pageSize}}
	for k, v := range query {
		ask[k] = v
	}
	for {
		answer, err := c.Do(ctx, apiclient.Call{Method: http.MethodGet, Path: path, Query: ask})
		if err != nil {
			return nil, err
		}
		var page map[string]json.RawMessage
		var list []json.RawMessage
		var next *string
		if json.Unmarshal(answer, &page) != nil || json.Unmarshal(page[name], &list) != nil || json.Unmarshal(page["next_cursor"], &next) != nil {
			return nil, fmt.Errorf("the answer to GET %s is no list of %s; is another program there?", path, name)
		}
		for _, e := range list {
			if err := each(e); err != nil {
				return nil, err
			}
		}
		if whole {
			entries = append(entries, list...)
			for member, value := range page { // what is said of the list is on each page
				all[member] = value
			}
		}
		if next == nil || *next == "" || *next == ask.Get("cursor") {
			break
		}
		ask.Set("cursor", *next)
	}
	if !whole {
		return nil, nil
	}
	all[name], all["next_cursor"] = entries, nil
	return json.Marshal(all)
}
