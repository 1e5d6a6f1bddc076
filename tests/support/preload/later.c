/* A library that looks for the next function of a name behind itself, as wrappers of libc do. */

#include <dlfcn.h>

int found_itself(void);
int played_wrapped(void);

int played_wrapped(void) { return 1; }

/* Whether RTLD_NEXT led back to this library: then whoever stands before dlvsym took our place. */
int found_itself(void)
{
    return dlvsym(RTLD_NEXT, "played_wrapped", "LATER") == (void *)played_wrapped;
}
