/* A library that looks up a function of its own by RTLD_NEXT, as wrappers of libc do. */

#include <dlfcn.h>

int found_itself(void);
int played_wrapped(void);

int played_wrapped(void) { return 1; }

/* Whether RTLD_NEXT leads back to this library: then a wrapper of dlvsym counts as the caller. */
int found_itself(void)
{
    return dlvsym(RTLD_NEXT, "played_wrapped", "LATER") == (void *)played_wrapped;
}
